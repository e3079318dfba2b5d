-- name: read_tiers
SELECT name, weight, quotas::text AS quotas, egress::text AS egress
  FROM tier;

-- name: read_changed
-- Index: tenant_change; a tenant that only ever had defaults is not in it.
SELECT id, weight, state, tier, spread, quotas::text AS quotas, defaults, egress::text AS egress, signing_version
  FROM tenant
 WHERE change > @seen::bigint
   AND change > 0;

-- name: read_unchanged
-- Those that only ever had defaults.
SELECT id, weight, state, tier, spread, quotas::text AS quotas, defaults, egress::text AS egress, signing_version
  FROM tenant
 WHERE change = 0;
