-- An idempotency key is kept beyond its ttl while its task is open.  This is when its ttl passed; expires_at is then
-- when upkeep looks at it again.  NULL takes no room in the rows that are inserted.
ALTER TABLE idempotency_key ADD COLUMN ttl_ended_at timestamptz;
