ALTER TABLE idempotency_key DROP COLUMN ttl_ended_at;
