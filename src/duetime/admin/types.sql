-- name: put
-- A change of the schema or of the rules is a new version; the same again is none.
WITH old AS MATERIALIZED (
    SELECT version, schema, rules
      FROM task_type
     WHERE tenant = @tenant::int
       AND name = @name::text
),
stored AS (
    INSERT INTO task_type AS kept (tenant, name, schema, rules)
    VALUES (@tenant::int, @name::text, @schema::bytea, @rules::bytea)
        ON CONFLICT (tenant, name) DO UPDATE
       SET schema = excluded.schema, rules = excluded.rules, version = kept.version + 1, updated_at = clock_timestamp()
     WHERE kept.schema IS DISTINCT FROM excluded.schema
        OR kept.rules IS DISTINCT FROM excluded.rules
 RETURNING version
),
risen AS (
    UPDATE rule_change
       SET change = change + 1
      FROM stored
     WHERE rule_change.kind = 'types'
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT @tenant::int, @by::int, CASE WHEN old.version IS NULL THEN 'type.create' ELSE 'type.change' END, @name::text,
           CASE WHEN old.version IS NOT NULL
                THEN jsonb_build_object('schema', convert_from(old.schema, 'UTF8')::jsonb)
                     || COALESCE(convert_from(old.rules, 'UTF8')::jsonb, '{}') END,
           jsonb_build_object('schema', convert_from(@schema::bytea, 'UTF8')::jsonb)
           || COALESCE(convert_from(@rules::bytea, 'UTF8')::jsonb, '{}')
      FROM stored
      LEFT JOIN old ON true
)
SELECT version
  FROM stored;

-- name: delete
WITH gone AS (
    DELETE FROM task_type
     WHERE tenant = @tenant::int
       AND name = @name::text
 RETURNING name, schema, rules
),
risen AS (
    UPDATE rule_change
       SET change = change + 1
      FROM gone
     WHERE rule_change.kind = 'types'
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before)
    SELECT @tenant::int, @by::int, 'type.delete', name,
           jsonb_build_object('schema', convert_from(schema, 'UTF8')::jsonb)
           || COALESCE(convert_from(rules, 'UTF8')::jsonb, '{}')
      FROM gone
)
SELECT name
  FROM gone;

-- name: read_of_tenant
SELECT name, version, schema, rules, updated_at
  FROM task_type
 WHERE tenant = @tenant::int
   AND name > @after::text
   AND (@likes::text[] IS NULL OR name LIKE ANY (@likes))
 ORDER BY name
 LIMIT @limit::int;

-- name: count_of_tenant
-- How many types the tenant has, and whether this one is among them.
-- Index: task_type_pkey.
SELECT count(*) AS types, count(*) FILTER (WHERE name = @name::text) > 0 AS is_known
  FROM task_type
 WHERE tenant = @tenant::int;

-- name: read_one
SELECT name, version, schema, rules, updated_at
  FROM task_type
 WHERE tenant = @tenant::int
   AND name = @name::text;

-- name: read_all
SELECT tenant, name, updated_at, schema, rules
  FROM task_type;

-- name: sample_waiting
-- Tasks of a type that wait, of each lane the soonest due.
-- Index: due_pkey (lane, wake), then task_pkey.
SELECT task.id, task.payload
  FROM unnest(@lanes::int[]) AS asked (lane)
 CROSS JOIN LATERAL (
       SELECT COALESCE(due.home, due.lane) AS lane, due.task
         FROM due
        WHERE due.lane = asked.lane
        ORDER BY due.wake
        LIMIT @most::int) AS waiting
  JOIN task
    ON task.lane = waiting.lane
   AND task.id = waiting.task
 WHERE task.type = @type::text
 LIMIT @most::int;
