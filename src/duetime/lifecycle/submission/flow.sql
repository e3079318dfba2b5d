-- name: take_rate
-- Accept as many of `asked` as the rate has room for (GCRA: the row says how far the
-- submissions are ahead of an even pace; at a whole period there is no room).
-- Locks: the row; the clock is read after the lock is taken, so the wait for it does not count.
-- Gives: how many were accepted, and in how many seconds there is room for the next.
-- Copies: counts submissions twice: fewer are accepted for a period, never more.
INSERT INTO submit_rate AS kept (tenant, key, even_at, granted)
SELECT @tenant::int, @key::bytea,
       clock_timestamp() + least(@asked::int, @limit::int) * @step::float8 * interval '1 second',
       least(@asked::int, @limit::int)
    ON CONFLICT (tenant, key) DO UPDATE
   SET (even_at, granted) = (
       SELECT room.from_at + room.granted * @step::float8 * interval '1 second', room.granted
         FROM (SELECT begun.from_at,
                      least(@asked::int, greatest(0, floor((@period::float8 - begun.ahead) / @step::float8)::int))
                          AS granted
                 FROM (SELECT greatest(kept.even_at, clock.at) AS from_at,
                              greatest(0, extract(epoch FROM kept.even_at - clock.at))::float8 AS ahead
                         FROM (SELECT clock_timestamp() AS at) AS clock) AS begun) AS room)
RETURNING granted,
          extract(epoch FROM even_at - clock_timestamp())::float8 + @step::float8 - @period::float8 AS wait;

-- name: read_known
-- Which of these idempotency keys exist, and whether their ttl has passed (keys.sql).
-- Index: idempotency_key_pkey (tenant, key).
SELECT known.key, known.has_ended
  FROM unnest(@keys::text[]) AS asked (key)
 CROSS JOIN LATERAL (
       SELECT key, ttl_ended_at IS NOT NULL OR expires_at <= clock_timestamp() AS has_ended
         FROM idempotency_key
        WHERE idempotency_key.tenant = @tenant::int
          AND idempotency_key.key = asked.key
        LIMIT 1) AS known;

-- name: read_key
-- The last known task of the key.
SELECT task, first_at
  FROM flow_key
 WHERE tenant = @tenant::int
   AND kind = @kind::smallint
   AND key = @key::bytea;

-- name: advance_key
-- Move the key's hint to the successor.  The idempotency key by which the successor
-- was found is kept for a while, for submissions that still use the old hint.
-- Locks: the row.  A hint that another submission has moved stays.
-- Copies: a hint that was moved since stays; the next submission corrects a wrong one.
WITH advanced AS (
    INSERT INTO flow_key AS kept (tenant, kind, key, task, first_at, holds_over, expires_at)
    VALUES (@tenant::int, @kind::smallint, @key::bytea, @task::uuid, @first_at::timestamptz, @holds_over::boolean,
            clock_timestamp() + @keep::float8 * interval '1 second')
        ON CONFLICT (tenant, kind, key) DO UPDATE
       SET task = excluded.task, first_at = excluded.first_at, holds_over = excluded.holds_over,
           expires_at = excluded.expires_at
     WHERE kept.task = @before::uuid
 RETURNING task
)
UPDATE idempotency_key
   SET expires_at = clock_timestamp() + interval '1 day'
  FROM advanced
 WHERE idempotency_key.tenant = @tenant::int
   AND idempotency_key.key = @name::text;

-- name: read_expired
-- Index: flow_key_expires.
SELECT tenant, kind, key, task, holds_over
  FROM flow_key
 WHERE expires_at <= @now::timestamptz
 ORDER BY expires_at
 LIMIT @batch::int;

-- name: drop_keys
-- Locks: the rows, in the order given (sorted by the caller).  A row whose task has changed stays.
-- Copies: names the task that the decision was about; a hint that was moved stays.
DELETE FROM flow_key
 USING unnest(@tenants::int[], @kinds::smallint[], @keys::bytea[], @tasks::uuid[]) AS old (tenant, kind, key, task)
 WHERE flow_key.tenant = ANY (ARRAY[old.tenant])  -- see claim.sql
   AND flow_key.kind = old.kind
   AND flow_key.key = old.key
   AND flow_key.task = old.task;

-- name: keep_keys
-- Keep the keys that are still needed, and check them again in a day.
-- Copies: names the task that the decision was about, and only sets the time of the next check.
UPDATE flow_key
   SET expires_at = @now::timestamptz + interval '1 day'
  FROM unnest(@tenants::int[], @kinds::smallint[], @keys::bytea[], @tasks::uuid[]) AS old (tenant, kind, key, task)
 WHERE flow_key.tenant = ANY (ARRAY[old.tenant])  -- see claim.sql
   AND flow_key.kind = old.kind
   AND flow_key.key = old.key
   AND flow_key.task = old.task;

-- name: drop_rates
-- Delete rates that are not ahead of their pace: they limit nothing.
-- Index: submit_rate_even.
-- Copies: a rate that is not ahead of that time limits nothing at any later time.
DELETE FROM submit_rate
 WHERE (tenant, key) IN (
       SELECT tenant, key
         FROM submit_rate
        WHERE even_at <= @now::timestamptz
        ORDER BY even_at
        LIMIT @batch::int)
   AND even_at <= @now::timestamptz
RETURNING tenant;
