-- name: free_keys
-- Delete those of the given keys whose ttl has passed and whose task is over.
-- Gives: those whose ttl has passed and whose task is open.
-- Locks: the rows, in the order given (sorted by the caller).
-- Index: idempotency_key_pkey; then most tasks are found over by attempt_pkey (lane, task) alone, the others
--        are looked for in claim, held, dead and due.  The LIMITs keep the look-ups by key (see state.sql).
-- Time:  a key is stored with its task or after it, so a task that is nowhere in this snapshot is over, and stays so.
-- Copies: names the task that the decision was about, and a task that is over stays over.
WITH ended AS MATERIALIZED (
    SELECT known.tenant, known.key, known.task, known.lane
      FROM unnest(@tenants::int[], @keys::text[]) AS asked (tenant, key)
     CROSS JOIN LATERAL (
           SELECT tenant, key, task, ('x' || right(replace(task::text, '-', ''), 8))::bit(32)::int AS lane
             FROM idempotency_key
            WHERE idempotency_key.tenant = asked.tenant
              AND idempotency_key.key = asked.key
              AND (idempotency_key.expires_at <= COALESCE(@now::timestamptz, clock_timestamp())
                   OR idempotency_key.ttl_ended_at IS NOT NULL)
            LIMIT 1) AS known
),
judged AS MATERIALIZED (
    SELECT ended.tenant, ended.key, ended.task,
           last.is_over IS NOT TRUE
           AND COALESCE((SELECT task FROM claim WHERE claim.lane = ended.lane AND claim.task = ended.task LIMIT 1),
                        (SELECT task FROM held WHERE held.lane = ended.lane AND held.task = ended.task LIMIT 1),
                        (SELECT task FROM dead WHERE dead.lane = ended.lane AND dead.task = ended.task LIMIT 1),
                        (SELECT task
                           FROM due
                          WHERE due.lane = ended.lane
                            AND due.wake = ended.task
                            AND due.task = ended.task
                          LIMIT 1),
                        (SELECT task
                           FROM due
                          WHERE COALESCE(due.home, due.lane) = ended.lane
                            AND due.task = ended.task
                            AND due.wake <> due.task
                          LIMIT 1)) IS NOT NULL AS is_open
      FROM ended
      LEFT JOIN LATERAL (
           SELECT final AND outcome IN (1, 6, 7) AS is_over
             FROM attempt
            WHERE attempt.lane = ended.lane
              AND attempt.task = ended.task
            ORDER BY number DESC
            LIMIT 1) AS last
        ON true
),
freed AS (
    DELETE FROM idempotency_key
     USING judged
     WHERE NOT judged.is_open
       AND idempotency_key.tenant = ANY (ARRAY[judged.tenant])  -- see claim.sql
       AND idempotency_key.key = judged.key
       AND idempotency_key.task = judged.task
)
SELECT tenant, key
  FROM judged
 WHERE is_open;

-- name: read_ended
-- Keys that are to be looked at: their ttl has passed, or it had long ago and their task was open.
-- Index: idempotency_key_expires.
SELECT tenant, key
  FROM idempotency_key
 WHERE expires_at <= @now::timestamptz
 ORDER BY expires_at
 LIMIT @batch::int;

-- name: keep_keys
-- The task is open: the key stays, and is looked at again later.
-- Locks: the rows, in the order given (sorted by the caller).  One that was freed and taken anew stays as it is.
-- Index: idempotency_key_pkey.
-- Copies: finds only what had ended by then, and only sets the time of the next check.
UPDATE idempotency_key
   SET ttl_ended_at = COALESCE(idempotency_key.ttl_ended_at, idempotency_key.expires_at),
       expires_at = @now::timestamptz + @look_again::float8 * interval '1 second'
  FROM unnest(@tenants::int[], @keys::text[]) AS asked (tenant, key)
 WHERE idempotency_key.tenant = ANY (ARRAY[asked.tenant])  -- see claim.sql
   AND idempotency_key.key = asked.key
   AND idempotency_key.expires_at <= @now::timestamptz;
