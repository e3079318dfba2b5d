-- name: beat
-- Raise the counters of living holders and record what they have started, and since when.
-- If a counter differs from the given one, another node has raised it and recorded more, so nothing is changed.
-- Gives: the ids that were alive with their counters.
-- Copies: names the known counter; each beat changes it.
UPDATE holder
   SET beats = beats + 1,
       beaten_at = clock_timestamp(),
       (running, running_numbers, running_us) = (
           SELECT COALESCE(array_agg(said.task), '{}'), COALESCE(array_agg(said.number), '{}'),
                  COALESCE(array_agg(said.since_us), '{}')
             FROM unnest(@started_holders::bigint[], @started_tasks::uuid[], @started_numbers::int[],
                         @started_us::bigint[]) AS said (holder, task, number, since_us)
            WHERE said.holder = holder.id)
  FROM unnest(@holders::bigint[], @counts::bigint[]) AS heard (id, count)
 WHERE holder.id = ANY (ARRAY[heard.id])
   AND holder.beats = heard.count
   -- Not "IS NULL": that would let the planner read every living holder by holder_name.
   AND COALESCE(holder.ended_at, 'infinity') = 'infinity'
RETURNING holder.id, holder.beats;

-- name: read_started
-- The counters of living holders, and what they had started at their last beat.
SELECT id, beats, running, running_numbers, running_us
  FROM holder
 WHERE id = ANY (@holders::bigint[])
   AND COALESCE(ended_at, 'infinity') = 'infinity';

-- name: read_held
-- The claims of these holders that were picked since the given times, and those of the given attempts.
-- Index: claim_holder (holder, picked_at), claim_pkey (lane, task); OFFSET and LIMIT keep the look-ups by key, whatever
--        the planner thinks of the table.
-- Time:  gives a row without a holder that says when it looked, by the clock that picked_at is from.
SELECT NULL::bigint AS holder, NULL::uuid AS task, NULL::int AS number, now() AS looked_at
 UNION ALL
SELECT claim.holder, claim.task, claim.number, NULL
  FROM unnest(@holders::bigint[], @sinces::timestamptz[]) AS asked (holder, since)
 CROSS JOIN LATERAL (
       SELECT *
         FROM claim
        WHERE claim.holder = asked.holder
          AND claim.picked_at > asked.since
       OFFSET 0) AS claim
 UNION ALL
SELECT claim.holder, claim.task, claim.number, NULL
  FROM {claims_asked_for};

-- name: read_beats
-- The counters of all living holders, and the database's time.
SELECT id, beats, tenant, name, max_silence
  FROM holder
 WHERE ended_at IS NULL;

-- name: allow_silence
-- Set how long a holder may be silent. NULL: the node that watches it decides.
UPDATE holder
   SET max_silence = @seconds::float8
 WHERE id = @holder::bigint;

-- name: end_silent
-- End holders whose counter has not changed for too long.
-- Copies: names the counter that was seen; each beat changes it.
UPDATE holder
   SET ended_at = clock_timestamp()
  FROM unnest(@ids::bigint[], @beats::bigint[]) AS silent (id, beats)
 WHERE holder.id = ANY (ARRAY[silent.id])
   AND holder.beats = silent.beats
   -- Not "IS NULL", as above.
   AND COALESCE(holder.ended_at, 'infinity') = 'infinity'
RETURNING holder.id;

-- name: sign_off
-- End the living holder of a name because it signs off itself, with its own key. What it had started stays recorded,
-- with what it adds now.
-- Index: holder_name, unique among the living.
UPDATE holder
   SET ended_at = clock_timestamp(),
       signed_off = true,
       running = running || @started_tasks::uuid[],
       running_us = '{}',
       running_numbers = running_numbers || @started_numbers::int[]
 WHERE tenant = @tenant::int
   AND name = @name::text
   AND ended_at IS NULL
   AND (@key::int IS NULL OR owner IS NULL OR owner = @key)
RETURNING id;

-- fragment: claims_of_holders
-- Gives: up to @batch claims of each holder, with what is needed to decide what follows.
-- Index: claim_holder, task_pkey; the LIMITs keep the look-ups by key, whatever the planner thinks of tables that nobody
--        has analysed: it would read every task there is.
SELECT claim.lane, claim.task, claim.number, claim.holder, claim.failures, claim.crashes, claim.releases,
       (claim.task, claim.number) IN (
           SELECT * FROM unnest(holder.running, holder.running_numbers)) AS was_started,
       holder.signed_off, task.options, claim.picked_at AS first_picked_at
  FROM holder
 CROSS JOIN LATERAL (
       SELECT *
         FROM claim
        WHERE claim.holder = holder.id
        LIMIT @batch::int) AS claim
 CROSS JOIN LATERAL (
       SELECT task.options
         FROM task
        WHERE task.lane = claim.lane
          AND task.id = claim.task
        LIMIT 1) AS task

-- name: read_signed_off
-- What a holder that has signed off still holds.
-- Index: holder_pkey; claims_of_holders.
{claims_of_holders}
 WHERE holder.id = @holder::bigint;

-- name: read_left_behind
-- Claims of holders that have ended.
-- A claim may be committed shortly after its holder's end: so look back a while.
-- Index: holder_ended; claims_of_holders.
{claims_of_holders}
 WHERE holder.ended_at > now() - @lookback::interval  -- clock_timestamp() could not lead an index scan
 LIMIT @batch::int;
