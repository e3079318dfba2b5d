-- name: make
-- A new tenant, or nothing if the name is taken.
INSERT INTO tenant (name, shard, signing_secret)
VALUES (@name::text, @shard::smallint, @secret::bytea)
    ON CONFLICT (name) DO NOTHING
RETURNING id, name, weight, shard, created_at;

-- name: find
SELECT id, name, weight, shard, created_at
  FROM tenant
 WHERE name = @name::text;

-- name: read_all
SELECT id, name, weight, shard, created_at
  FROM tenant
 ORDER BY name;

-- name: read_secret
SELECT signing_secret
  FROM tenant
 WHERE id = @tenant::int;
