-- name: put
-- What some breakers are like now, the latest word about each.
-- Locks: their rows, in the order of the key, which the caller sees to.
-- Index: breaker_state_pkey (tenant, host).
INSERT INTO breaker_state AS kept (tenant, host, memory)
SELECT given.tenant, given.host, given.memory::jsonb
  FROM unnest(@tenants::int[], @hosts::text[], @memories::text[]) AS given (tenant, host, memory)
    ON CONFLICT (tenant, host) DO UPDATE
   SET memory = excluded.memory, stored_at = excluded.stored_at
RETURNING tenant, host, stored_at;

-- name: remove
-- These need no row any more, unless somebody has written another one meanwhile.
-- Index: breaker_state_pkey (tenant, host).
-- Copies: names the time at which the row was stored.
DELETE FROM breaker_state
 USING unnest(@tenants::int[], @hosts::text[], @stored_at::timestamptz[]) AS given (tenant, host, stored_at)
 WHERE breaker_state.tenant = given.tenant
   AND breaker_state.host = given.host
   AND breaker_state.stored_at = given.stored_at;

-- name: read
-- Of some tenants, what is young enough to count.
-- Index: breaker_state_pkey (tenant, host).
-- Time:  the database's now().
SELECT tenant, host, memory::text AS memory, stored_at
  FROM breaker_state
 WHERE tenant = ANY (@tenants::int[])
   AND stored_at > now() - @keep::interval;

-- name: retire
-- A scan: there are few rows.
-- Copies: the same rows are too old at any later time.
DELETE FROM breaker_state
 WHERE stored_at < now() - @keep::interval;
