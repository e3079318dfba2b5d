-- name: force
WITH old AS MATERIALIZED (
    SELECT forced, note
      FROM breaker
     WHERE tenant = @tenant::int
       AND host = @host::text
),
changed AS (
    INSERT INTO breaker AS kept (tenant, host, forced, note)
    VALUES (@tenant::int, @host::text, @forced::text, @note::text)
        ON CONFLICT (tenant, host) DO UPDATE
       SET forced = excluded.forced, note = excluded.note, updated_at = clock_timestamp()
     WHERE (kept.forced, kept.note) IS DISTINCT FROM (excluded.forced, excluded.note)
 RETURNING host, 'breakers' AS kind
),
{rule_changed},
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT @tenant::int, @by::int, 'breaker.force', changed.host,
           CASE WHEN old.forced IS NOT NULL THEN jsonb_build_object('state', old.forced, 'note', old.note) END,
           jsonb_build_object('state', @forced::text, 'note', @note::text)
      FROM changed
      LEFT JOIN old ON true
)
SELECT host
  FROM changed;

-- name: set_free
WITH changed AS (
    DELETE FROM breaker
     WHERE tenant = @tenant::int
       AND host = @host::text
 RETURNING host, forced, note, 'breakers' AS kind
),
{rule_changed},
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT @tenant::int, @by::int, 'breaker.auto', host,
           jsonb_build_object('state', forced, 'note', note),
           jsonb_strip_nulls(jsonb_build_object('state', 'auto', 'note', NULLIF(@note::text, '')))
      FROM changed
)
SELECT host
  FROM changed;

-- name: count_of_tenant
SELECT count(*) AS breakers
  FROM breaker
 WHERE tenant = @tenant::int
   AND host <> @host::text;

-- name: read_of_tenant
-- Index: breaker_pkey (tenant, host).
SELECT host, forced, note, updated_at
  FROM breaker
 WHERE tenant = @tenant::int
 ORDER BY host;

-- name: read_all
SELECT tenant, host, forced
  FROM breaker;

-- name: read_changed
-- Of each tenant that changed its breakers since: all of them; a row without a host says that it has none.
-- Index: tenant_rule_change_change (kind, change), breaker_pkey.
SELECT changed.tenant, kept.host, kept.forced
  FROM tenant_rule_change AS changed
  LEFT JOIN breaker AS kept
    ON kept.tenant = changed.tenant
 WHERE changed.kind = 'breakers'
   AND changed.change > @seen::bigint;
