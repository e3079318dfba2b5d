-- name: make
-- Make a key and note it.  @by is NULL where the command line asks on the database itself.  One that replaces another
-- is of that one's family.
-- Locks: none beyond the new rows.
WITH made AS (
    INSERT INTO api_key (tenant, hash, hint, role, name, types, queues, allowed_ips, expires_at, family)
    VALUES (@tenant::int, @hash::bytea, @hint::text, @role::text, @name::text, @types::text[], @queues::text[],
            @allowed_ips::text[], @expires_at::timestamptz,
            (SELECT COALESCE(family, id) FROM api_key WHERE tenant = @tenant::int AND id = @replaces::int))
 RETURNING *
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, after)
    SELECT tenant, @by::int, @action::text, id::text,
           jsonb_build_object('role', role, 'name', name, 'types', types, 'queues', queues,
                              'allowed_ips', allowed_ips, 'expires_at', expires_at)
      FROM made
)
SELECT id, hint, role, name, types, queues, allowed_ips, created_at, expires_at, revoked_at
  FROM made;

-- name: find
-- Whose keys these are, without those that were revoked or whose time is over.
-- Index: api_key_hash_key.
SELECT api_key.hash, api_key.id, api_key.role, api_key.types, api_key.queues, api_key.allowed_ips,
       COALESCE(api_key.family, api_key.id) AS family, tenant.id AS tenant, tenant.name AS tenant_name
  FROM api_key
  JOIN tenant
    ON tenant.id = api_key.tenant
 WHERE api_key.hash = ANY (@hashes::bytea[])
   AND api_key.revoked_at IS NULL
   AND (api_key.expires_at IS NULL OR api_key.expires_at > clock_timestamp());

-- name: count_admin
-- How many keys may do everything, of all tenants.
-- Index: none; it is asked when a node starts and by doctor.
-- Time: the database's clock says whether a key's time is over.
SELECT count(*) AS keys
  FROM api_key
 WHERE role = 'admin'
   AND revoked_at IS NULL
   AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: has_lasting_admin
-- Whether the tenant has a key that may do everything and goes on until it is revoked.
-- Index: api_key_tenant.
SELECT EXISTS (SELECT
                 FROM api_key
                WHERE tenant = @tenant::int
                  AND role = 'admin'
                  AND revoked_at IS NULL
                  AND expires_at IS NULL) AS has_one;

-- name: count_of_tenant
-- How many valid keys the tenant has.
-- Index: api_key_tenant.
-- Time: the database's clock says whether a key's time is over.
SELECT count(*) AS keys
  FROM api_key
 WHERE tenant = @tenant::int
   AND revoked_at IS NULL
   AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: read_of_tenant
-- A page of a tenant's keys with their last use, by id; with @unused_for only those that are valid and were not used for
-- so many seconds.
-- Index: api_key_pkey, where keys of others in between are read and left out; api_key_use_pkey.
-- Time: the database's clock says whether a key's time is over.
SELECT api_key.id, api_key.hint, api_key.role, api_key.name, api_key.types, api_key.queues, api_key.allowed_ips,
       api_key.created_at, api_key.expires_at, api_key.revoked_at, last.used_at, last.used_from
  FROM api_key
  LEFT JOIN api_key_use AS last
    ON last.key = api_key.id
 WHERE api_key.tenant = @tenant::int
   AND api_key.id > @after::int
   AND (@unused_for::float8 IS NULL
        OR (api_key.revoked_at IS NULL
            AND (api_key.expires_at IS NULL OR api_key.expires_at > clock_timestamp())
            AND COALESCE(last.used_at, api_key.watched_since)
                < clock_timestamp() - @unused_for::float8 * interval '1 second'))
 ORDER BY api_key.id
 LIMIT @limit::int;

-- name: read_one
-- Index: api_key_pkey.
SELECT id, hint, role, name, types, queues, allowed_ips, created_at, expires_at, revoked_at
  FROM api_key
 WHERE tenant = @tenant::int
   AND id = @key::int;

-- name: lock_one
-- A key, for whoever changes it next in the same transaction.
-- Locks: its row.
-- Index: api_key_pkey.
-- Time: the database's clock says whether its time is over.
SELECT id, hint, role, name, types, queues, allowed_ips, created_at, expires_at, revoked_at,
       COALESCE(expires_at <= clock_timestamp(), false) AS is_expired
  FROM api_key
 WHERE tenant = @tenant::int
   AND id = @key::int
   FOR UPDATE;

-- name: revoke
-- A key that was revoked stays revoked since then.
WITH old AS MATERIALIZED (
    SELECT id, revoked_at
      FROM api_key
     WHERE tenant = @tenant::int
       AND id = @key::int
       FOR UPDATE
),
gone AS (
    UPDATE api_key
       SET revoked_at = COALESCE(api_key.revoked_at, clock_timestamp())
      FROM old
     WHERE api_key.id = old.id
 RETURNING api_key.id, api_key.hash, api_key.role
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before)
    SELECT @tenant::int, @by::int, 'key.revoke', gone.id::text, jsonb_build_object('role', gone.role)
      FROM gone
      JOIN old ON old.id = gone.id
     WHERE old.revoked_at IS NULL
)
SELECT id, hash
  FROM gone;

-- name: let_expire
-- The key that was replaced goes on for a while.
WITH old AS MATERIALIZED (
    SELECT id, expires_at
      FROM api_key
     WHERE tenant = @tenant::int
       AND id = @key::int
       AND revoked_at IS NULL
       FOR UPDATE
),
changed AS (
    UPDATE api_key
       SET expires_at = LEAST(api_key.expires_at, clock_timestamp() + @seconds::float8 * interval '1 second')
      FROM old
     WHERE api_key.id = old.id
 RETURNING api_key.id, api_key.expires_at
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT @tenant::int, @by::int, 'key.rotate', old.id::text,
           jsonb_build_object('expires_at', old.expires_at), jsonb_build_object('expires_at', changed.expires_at)
      FROM old
      JOIN changed ON changed.id = old.id
)
SELECT id
  FROM changed;
