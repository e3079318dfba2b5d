-- name: make
-- A new tenant, or nothing if the name is taken.
WITH made AS (
    INSERT INTO tenant (name, shard, signing_secret, weight, state)
    VALUES (@name::text, @shard::smallint, @secret::bytea, @weight::int, @state::text)
        ON CONFLICT (name) DO NOTHING
 RETURNING id, name, weight, state, shard, created_at, updated_at
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, after)
    SELECT id, @key::int, 'tenant.create', name, jsonb_build_object('weight', weight, 'state', state)
      FROM made
)
SELECT id, name, weight, state, shard, created_at, updated_at
  FROM made;

-- name: change
-- Gives: the tenant as it is now; a change that changes nothing is not noted.
WITH old AS MATERIALIZED (
    SELECT id, name, weight, state
      FROM tenant
     WHERE name = @name::text
       FOR UPDATE
),
changed AS (
    UPDATE tenant
       SET weight = @weight::int, state = @state::text, updated_at = clock_timestamp()
      FROM old
     WHERE tenant.id = old.id
       AND (old.weight, old.state) IS DISTINCT FROM (@weight::int, @state::text)
 RETURNING tenant.id
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT old.id, @key::int, 'tenant.change', old.name,
           jsonb_build_object('weight', old.weight, 'state', old.state),
           jsonb_build_object('weight', @weight::int, 'state', @state::text)
      FROM old
      JOIN changed ON changed.id = old.id
)
SELECT id
  FROM old;

-- name: find
SELECT id, name, weight, state, shard, created_at, updated_at
  FROM tenant
 WHERE name = @name::text;

-- name: read_page
SELECT id, name, weight, state, shard, created_at, updated_at
  FROM tenant
 WHERE name > @after::text
 ORDER BY name
 LIMIT @limit::int;

-- name: read_rules
-- What a feeder needs to know: weights that are not 1, and who is suspended.
SELECT id, weight, state
  FROM tenant
 WHERE weight <> 1
    OR state <> 'active';

-- name: read_secret
SELECT signing_secret
  FROM tenant
 WHERE id = @tenant::int;

-- name: read_audit
-- The latest first; of one tenant, or of all.
SELECT audit.id, audit.at, tenant.name AS tenant, audit.key, api_key.hint AS key_hint, audit.action, audit.subject,
       audit.before::text AS before, audit.after::text AS after
  FROM audit
  LEFT JOIN tenant
    ON tenant.id = audit.tenant
  LEFT JOIN api_key
    ON api_key.id = audit.key
 WHERE audit.id < @before::bigint
   AND (@tenant::int IS NULL OR audit.tenant = @tenant::int)
 ORDER BY audit.id DESC
 LIMIT @limit::int;
