-- name: read
-- What a tenant's quotas are made of.
-- Index: tenant_pkey, tier_pkey.
SELECT tenant.quotas::text AS quotas, tier.quotas::text AS tier_quotas, tenant.defaults,
       usual.quotas::text AS default_quotas
  FROM tenant
  LEFT JOIN tier
    ON tier.name = tenant.tier
  LEFT JOIN tier AS usual
    ON usual.name = 'default'
 WHERE tenant.id = @tenant::int;

-- name: lock
-- Locks: the tenant, until the commit; not its key, which other rows refer to.
-- Index: tenant_pkey.
SELECT id
  FROM tenant
 WHERE id = @tenant::int
   FOR NO KEY UPDATE;
