-- name: put
-- Locks: the tier, then the number of changes, until the commit.
-- Gives: whether it is new; a change that changes nothing is not noted.
WITH old AS MATERIALIZED (
    SELECT name, weight, quotas, egress
      FROM tier
     WHERE name = @name::text
       FOR NO KEY UPDATE
),
stored AS (
    INSERT INTO tier AS kept (name, weight, quotas, egress)
    VALUES (@name::text, @weight::int, @quotas::jsonb, @egress::jsonb)
        ON CONFLICT (name) DO UPDATE
       SET weight = excluded.weight, quotas = excluded.quotas, egress = excluded.egress,
           updated_at = clock_timestamp()
     WHERE (kept.weight, kept.quotas, kept.egress)
           IS DISTINCT FROM (excluded.weight, excluded.quotas, excluded.egress)
 RETURNING name
),
counted AS (
    UPDATE rule_change
       SET change = change + 1
     WHERE kind = 'tenants'
       AND EXISTS (SELECT FROM stored)
),
noted AS (
    INSERT INTO audit (key, action, subject, before, after)
    SELECT @key::int, CASE WHEN old.name IS NULL THEN 'tier.create' ELSE 'tier.change' END, stored.name,
           CASE WHEN old.name IS NOT NULL
                THEN jsonb_build_object('weight', old.weight, 'quotas', old.quotas, 'egress', old.egress)
           END,
           jsonb_build_object('weight', @weight::int, 'quotas', @quotas::jsonb, 'egress', @egress::jsonb)
      FROM stored
      LEFT JOIN old
        ON old.name = stored.name
)
SELECT NOT EXISTS (SELECT FROM old) AS is_new;

-- name: lock
-- Locks: the tier, until the commit; not its key, which a tenant that gets it looks at.
SELECT name, weight, quotas::text AS quotas, egress::text AS egress
  FROM tier
 WHERE name = @name::text
   FOR NO KEY UPDATE;

-- name: delete
-- A tier that a tenant has is kept: the reference refuses.
WITH gone AS (
    DELETE FROM tier
     WHERE name = @name::text
 RETURNING name, weight, quotas, egress
),
noted AS (
    INSERT INTO audit (key, action, subject, before)
    SELECT @key::int, 'tier.delete', name, jsonb_build_object('weight', weight, 'quotas', quotas, 'egress', egress)
      FROM gone
)
SELECT name
  FROM gone;

-- name: count
SELECT count(*) AS tiers
  FROM tier;

-- fragment: tiers
-- Gives: tiers, with how many tenants have each.  The tier `default` is that of those that have none.
SELECT tier.name, tier.weight, tier.quotas::text AS quotas, tier.egress::text AS egress, tier.created_at,
       tier.updated_at,
       (SELECT count(*)
          FROM tenant
         WHERE tenant.tier = tier.name
            OR (tier.name = 'default' AND tenant.tier IS NULL AND tenant.defaults)) AS tenants
  FROM tier

-- name: find
{tiers}
 WHERE tier.name = @name::text;

-- name: read_page
{tiers}
 WHERE tier.name > @after::text
 ORDER BY tier.name
 LIMIT @limit::int;
