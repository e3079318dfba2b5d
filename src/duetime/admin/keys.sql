-- name: make
INSERT INTO api_key (tenant, hash, hint, role)
VALUES (@tenant::int, @hash::bytea, @hint::text, @role::text)
RETURNING id, hint, role, created_at, revoked_at;

-- name: find
-- Whose key this is, unless it was revoked.
-- Index: api_key_hash_key.
SELECT api_key.id, api_key.role, tenant.id AS tenant, tenant.name AS tenant_name
  FROM api_key
  JOIN tenant
    ON tenant.id = api_key.tenant
 WHERE api_key.hash = @hash::bytea
   AND api_key.revoked_at IS NULL;

-- name: read_of_tenant
SELECT id, hint, role, created_at, revoked_at
  FROM api_key
 WHERE tenant = @tenant::int
 ORDER BY id;

-- name: revoke
-- A key that was revoked stays revoked since then.
UPDATE api_key
   SET revoked_at = COALESCE(revoked_at, clock_timestamp())
 WHERE tenant = @tenant::int
   AND id = @key::int
RETURNING id, hash;
