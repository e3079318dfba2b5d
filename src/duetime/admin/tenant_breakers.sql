-- name: open
-- Stop a tenant; nothing if that was done already.
-- Locks: its row, then the number of changes.
-- Index: tenant_breaker_pkey (tenant).
-- Time:  the database's clock.
WITH changed AS (
    INSERT INTO tenant_breaker AS kept (tenant, state, probe_at, reason, attempts, failures)
    VALUES (@tenant::int, 'open', clock_timestamp() + @probe_every::interval, @reason::text, @attempts::bigint,
            @failures::bigint)
        ON CONFLICT (tenant) DO UPDATE
       SET state = 'open', since = clock_timestamp(), probe_at = excluded.probe_at, reason = excluded.reason,
           attempts = excluded.attempts, failures = excluded.failures
     WHERE kept.state = 'closing'
 RETURNING tenant, 'breakers' AS kind
),
{rule_changed}
SELECT tenant
  FROM changed;

-- name: take_probe
-- The right to let one task of a stopped tenant start; of all nodes one gets it.
-- Locks: its row, then the number of changes.
-- Index: tenant_breaker_pkey (tenant).
-- Time:  the database's clock.
WITH changed AS (
    UPDATE tenant_breaker
       SET probe_at = clock_timestamp() + @probe_every::interval
     WHERE tenant = @tenant::int
       AND state = 'open'
       AND probe_at <= clock_timestamp()
 RETURNING tenant, 'breakers' AS kind
),
{rule_changed}
SELECT tenant
  FROM changed;

-- name: resume
-- A probe succeeded: from now on the tenant has its attempts back little by little.
-- Locks: its row, then the number of changes.
-- Index: tenant_breaker_pkey (tenant).
WITH changed AS (
    UPDATE tenant_breaker
       SET state = 'closing', since = clock_timestamp(), reason = @reason::text || reason
     WHERE tenant = @tenant::int
       AND state = 'open'
 RETURNING tenant, 'breakers' AS kind
),
{rule_changed}
SELECT tenant
  FROM changed;

-- name: begin_slowly
-- As after a probe, also if nothing was found against the tenant: it was held open by hand.
-- Locks: its row, then the number of changes.
WITH changed AS (
    INSERT INTO tenant_breaker AS kept (tenant, state, probe_at, reason, attempts, failures)
    VALUES (@tenant::int, 'closing', clock_timestamp(), @reason::text, 0, 0)
        ON CONFLICT (tenant) DO UPDATE
       SET state = 'closing', since = clock_timestamp(), reason = excluded.reason
 RETURNING tenant, 'breakers' AS kind
),
{rule_changed}
SELECT tenant
  FROM changed;

-- name: close
-- It is over; with `only`, if the row is still in that state.
-- Locks: its row, then the number of changes.
-- Index: tenant_breaker_pkey (tenant).
WITH changed AS (
    DELETE FROM tenant_breaker
     WHERE tenant = @tenant::int
       AND (@only::text IS NULL OR state = @only::text)
 RETURNING tenant, 'breakers' AS kind
),
{rule_changed}
SELECT tenant
  FROM changed;

-- name: read_all
-- A scan: there are few rows.
SELECT tenant_breaker.tenant, tenant.name, tenant_breaker.state, tenant_breaker.since, tenant_breaker.probe_at,
       tenant_breaker.reason, tenant_breaker.attempts, tenant_breaker.failures
  FROM tenant_breaker
  JOIN tenant
    ON tenant.id = tenant_breaker.tenant;
