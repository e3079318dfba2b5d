-- name: read_keys
-- The task that a key belongs to, for later submissions with that key, and whether its ttl has passed (keys.sql).
SELECT idempotency_key.tenant, idempotency_key.key, idempotency_key.task, idempotency_key.fingerprint,
       idempotency_key.ttl_ended_at IS NOT NULL
       OR idempotency_key.expires_at <= COALESCE(@now::timestamptz, clock_timestamp()) AS has_ended
  FROM unnest(@tenants::int[], @keys::text[]) AS asked (tenant, key)
 CROSS JOIN LATERAL (
       SELECT *
         FROM idempotency_key
        WHERE idempotency_key.tenant = asked.tenant
          AND idempotency_key.key = asked.key
        LIMIT 1) AS idempotency_key;

-- name: read_requests
-- The stored answer to a repeated request.
SELECT request_key.id, request_key.tenant, request_key.fingerprint, request_key.tasks
  FROM unnest(@ids::uuid[], @tenants::int[]) AS asked (id, tenant)
 CROSS JOIN LATERAL (
       SELECT *
         FROM request_key
        WHERE request_key.id = asked.id
          AND request_key.tenant = asked.tenant
        LIMIT 1) AS request_key;
