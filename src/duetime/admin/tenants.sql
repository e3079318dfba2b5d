-- name: make
-- A new tenant, or nothing if the name is taken.
-- Locks: the tier of the defaults against changes, then the number of changes, if nodes must know of it, until the commit.
WITH usual AS MATERIALIZED (  -- if it is about tenants at work, nodes know every tenant by heart
    SELECT weight IS NOT NULL OR quotas ?| @at_work::text[] AS is_at_work
      FROM tier
     WHERE name = 'default'
       FOR SHARE
),
counted AS (
    UPDATE rule_change
       SET change = change + 1
     WHERE kind = 'tenants'
       AND (@is_news::boolean
            OR EXISTS (SELECT FROM usual WHERE is_at_work))
 RETURNING change
),
made AS (
    INSERT INTO tenant (name, shard, signing_secret, weight, state, tier, spread, quotas, defaults, egress, change)
    SELECT @name::text, @shard::smallint, @secret::bytea, @weight::int, @state::text, @tier::text, @spread::smallint,
           @quotas::jsonb, @defaults::boolean, @egress::jsonb, COALESCE((SELECT change FROM counted), 0)
        ON CONFLICT (name) DO NOTHING
 RETURNING id, name
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, after)
    SELECT id, @key::int, 'tenant.create', name,
           jsonb_build_object('weight', @weight::int, 'state', @state::text, 'tier', @tier::text,
                              'spread', @spread::smallint, 'quotas', @quotas::jsonb,
                              'defaults', @defaults::boolean, 'egress', @egress::jsonb)
      FROM made
)
SELECT id
  FROM made;

-- name: lock
-- Locks: the tenant, until the commit.
SELECT id
  FROM tenant
 WHERE name = @name::text
   FOR UPDATE;

-- name: change
-- A change that changes nothing is not noted.
-- Locks: the tenant, then the number of changes, until the commit.
WITH old AS MATERIALIZED (
    SELECT id, name, weight, state, tier, spread, quotas, defaults, egress
      FROM tenant
     WHERE name = @name::text
       AND (weight, state, tier, spread, quotas, defaults, egress)
           IS DISTINCT FROM (@weight::int, @state::text, @tier::text, @spread::smallint, @quotas::jsonb,
                             @defaults::boolean, @egress::jsonb)
       FOR UPDATE
),
counted AS (
    UPDATE rule_change
       SET change = change + 1
     WHERE kind = 'tenants'
       AND EXISTS (SELECT FROM old)
 RETURNING change
),
changed AS (
    UPDATE tenant
       SET weight = @weight::int, state = @state::text, tier = @tier::text, spread = @spread::smallint,
           quotas = @quotas::jsonb, defaults = @defaults::boolean, egress = @egress::jsonb,
           updated_at = clock_timestamp(), change = counted.change
      FROM old, counted
     WHERE tenant.id = old.id
)
INSERT INTO audit (tenant, key, action, subject, before, after)
SELECT old.id, @key::int, 'tenant.change', old.name,
       jsonb_build_object('weight', old.weight, 'state', old.state, 'tier', old.tier, 'spread', old.spread,
                          'quotas', old.quotas, 'defaults', old.defaults, 'egress', old.egress),
       jsonb_build_object('weight', @weight::int, 'state', @state::text, 'tier', @tier::text,
                          'spread', @spread::smallint, 'quotas', @quotas::jsonb,
                          'defaults', @defaults::boolean, 'egress', @egress::jsonb)
  FROM old;

-- fragment: tenants
-- Gives: tenants, with the tiers that their weight, quotas and egress rules follow from.
SELECT tenant.id, tenant.name, tenant.weight, tenant.state, tenant.shard, tenant.created_at, tenant.updated_at,
       tenant.tier, tenant.spread, tenant.quotas::text AS quotas, tier.weight AS tier_weight,
       tier.quotas::text AS tier_quotas, tenant.defaults, usual.weight AS default_weight,
       usual.quotas::text AS default_quotas, tenant.egress::text AS egress, tier.egress::text AS tier_egress,
       usual.egress::text AS default_egress
  FROM tenant
  LEFT JOIN tier
    ON tier.name = tenant.tier
  LEFT JOIN tier AS usual
    ON usual.name = 'default'

-- name: find
{tenants}
 WHERE tenant.name = @name::text;

-- name: read_page
{tenants}
 WHERE tenant.name > @after::text
 ORDER BY tenant.name
 LIMIT @limit::int;

-- name: read_audit
-- The latest first; of one tenant, or of all.
-- Gives: as many as fit (see pages.py).
SELECT weighed.id, weighed.at, tenant.name AS tenant, weighed.key, api_key.hint AS key_hint, weighed.action,
       weighed.subject, weighed.before, weighed.after, weighed.found
  FROM (SELECT page.*, count(*) OVER () AS found,
               sum(COALESCE(octet_length(before), 0) + COALESCE(octet_length(after), 0)) OVER (
                   ORDER BY id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
          FROM (SELECT id, at, tenant, key, action, subject, before::text AS before, after::text AS after
                  FROM audit
                 WHERE audit.id < @before::bigint
                   AND (@tenant::int IS NULL OR audit.tenant = @tenant::int)
                 ORDER BY audit.id DESC
                 LIMIT @limit::int) AS page) AS weighed
  LEFT JOIN tenant
    ON tenant.id = weighed.tenant
  LEFT JOIN api_key
    ON api_key.id = weighed.key
 WHERE COALESCE(weighed.bytes_before, 0) < @bytes::bigint
 ORDER BY weighed.id DESC;

-- name: read_names
-- Index: tenant_pkey.
SELECT id, name
  FROM tenant
 WHERE id = ANY (@tenants::int[]);
