-- name: put
-- A change of the schema or of the rules is a new version; the same again is none.
-- Locks: the type, then the number of changes, until the commit; the tenant is locked before.
WITH old AS MATERIALIZED (
    SELECT version, schema, rules
      FROM task_type
     WHERE tenant = @tenant::int
       AND name = @name::text
       FOR UPDATE
),
risen AS (
    UPDATE rule_change
       SET change = change + 1, named = named + 1
     WHERE kind = 'types'
       AND NOT EXISTS (
           SELECT FROM old
            WHERE schema IS NOT DISTINCT FROM @schema::bytea
              AND rules IS NOT DISTINCT FROM @rules::bytea)
 RETURNING kind, change
),
{told},
stored AS (
    INSERT INTO task_type AS kept (tenant, name, schema, rules, held_bytes, change)
    SELECT @tenant::int, @name::text, @schema::bytea, @rules::bytea, @held_bytes::bigint, change
      FROM risen
        ON CONFLICT (tenant, name) DO UPDATE
       SET schema = excluded.schema, rules = excluded.rules, version = kept.version + 1,
           updated_at = clock_timestamp(), held_bytes = excluded.held_bytes, change = excluded.change
 RETURNING version, updated_at
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
SELECT version, updated_at
  FROM stored;

-- name: delete
-- Locks: the type, then the number of changes, until the commit.
WITH changed AS (
    DELETE FROM task_type
     WHERE tenant = @tenant::int
       AND name = @name::text
 RETURNING name, schema, rules, 'types' AS kind
),
{rule_changed},
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before)
    SELECT @tenant::int, @by::int, 'type.delete', name,
           jsonb_build_object('schema', convert_from(schema, 'UTF8')::jsonb)
           || COALESCE(convert_from(rules, 'UTF8')::jsonb, '{}')
      FROM changed
)
SELECT name
  FROM changed;

-- name: read_of_tenant
-- A page of a tenant's types, by name; @likes is for a key that is confined.
-- Index: task_type_pkey (tenant, name).
-- Gives: as many as fit (see pages.py).
SELECT name, version, schema, rules, updated_at, found
  FROM (SELECT page.*, count(*) OVER () AS found,
               sum(COALESCE(octet_length(schema), 0) + COALESCE(octet_length(rules), 0)) OVER (
                   ORDER BY name ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
          FROM (SELECT *
                  FROM task_type
                 WHERE tenant = @tenant::int
                   AND name > @after::text
                   AND (@likes::text[] IS NULL OR name LIKE ANY (@likes))
                 ORDER BY name
                 LIMIT @limit::int) AS page) AS weighed
 WHERE COALESCE(bytes_before, 0) < @bytes::bigint
 ORDER BY name;

-- name: count_of_tenant
-- How many types the tenant has, whether this one is among them, and what the schemas of the others hold in memory.
-- Where that was not counted, when it was stored, it is guessed.
-- Index: task_type_pkey.
SELECT count(*) AS types, count(*) FILTER (WHERE name = @name::text) > 0 AS is_known,
       COALESCE(sum(COALESCE(held_bytes, 20 * octet_length(schema))) FILTER (WHERE name <> @name::text), 0)::bigint
       AS held_bytes
  FROM task_type
 WHERE tenant = @tenant::int;

-- name: read_one
SELECT name, version, schema, rules, updated_at
  FROM task_type
 WHERE tenant = @tenant::int
   AND name = @name::text;

-- name: read_all
SELECT tenant, name, updated_at, schema IS NOT NULL AS has_schema, rules
  FROM task_type;

-- name: read_changed
-- Of each tenant that changed its types since: how many it has, and those that are new or other.
-- A row without a name says only how many there are.
-- Index: tenant_rule_change_change (kind, change), task_type_pkey, task_type_change (tenant, change).
SELECT changed.tenant, counted.types, kept.name, kept.updated_at, kept.schema IS NOT NULL AS has_schema, kept.rules
  FROM tenant_rule_change AS changed
 CROSS JOIN LATERAL (
       SELECT count(*) AS types
         FROM task_type
        WHERE tenant = changed.tenant) AS counted
  LEFT JOIN task_type AS kept
    ON kept.tenant = changed.tenant
   AND kept.change > @seen::bigint
 WHERE changed.kind = 'types'
   AND changed.change > @seen::bigint;

-- name: read_names
-- Index: task_type_pkey.
SELECT tenant, name
  FROM task_type
 WHERE tenant = ANY (@tenants::int[]);

-- name: read_schema
-- Index: task_type_pkey.
SELECT schema
  FROM task_type
 WHERE tenant = @tenant::int
   AND name = @name::text;

-- name: sample_waiting
-- Tasks of a type that wait, of each lane the soonest due.
-- Index: due_pkey (lane, wake), then task_pkey.
SELECT task.lane, task.id
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

-- name: read_payloads
-- Index: task_pkey.
SELECT task.id, task.payload
  FROM unnest(@lanes::int[], @tasks::uuid[]) AS asked (lane, id)
  JOIN task
    ON task.lane = asked.lane
   AND task.id = asked.id;
