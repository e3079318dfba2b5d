-- name: read_key_ids
-- The ids of the keys with which the secrets of schedules and tasks are encrypted.
-- A sealed text begins with eight hexadecimal digits and a dot (model/vault.py).
-- Index: none; it reads the schedules and @limit tasks (NULL: all), for doctor.
WITH looked_at AS (
    SELECT task_options AS options
      FROM schedule
     WHERE task_options IS NOT NULL
 UNION ALL
    (SELECT options
       FROM task
      WHERE options IS NOT NULL
      LIMIT @limit::bigint)
),
stored AS (
    SELECT convert_from(options, 'UTF8')::jsonb #> '{target,secret_headers}' AS secret_headers
      FROM looked_at
     WHERE position('"secret_headers"'::bytea IN options) > 0
)
SELECT DISTINCT left(sealed.value, 8) AS key_id
  FROM stored
 CROSS JOIN LATERAL jsonb_each_text(COALESCE(stored.secret_headers, '{}')) AS sealed (name, value)
 ORDER BY key_id;
