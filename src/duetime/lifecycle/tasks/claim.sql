-- fragment: claimed
-- Takes: rows of due, in `taken`.  Leaves: a claim of each.
claimed AS (
    INSERT INTO claim (lane, task, number, failures, crashes, releases, holder, picked_at)
    SELECT home, task, number, failures, crashes, releases, holder, at
      FROM taken, due_by
)

-- fragment: taken_tasks
-- Gives: the rows in `taken`, with their tasks.  Only a task that does not wait under its first wake can have been given
--        another time, so only for those is it looked up.  What costs the driver most is left out or packed: a wake that
--        is the task's id (as all first ones are), the home of a row that is at home, and times of which the driver would
--        make objects.
-- Index: task_pkey (lane, id), rescheduled_pkey (lane, task).
SELECT taken.lane, NULLIF(taken.wake, taken.task) AS wake, taken.task, taken.number, taken.failures, taken.crashes,
       taken.releases, taken.holder, NULLIF(taken.home, taken.lane) AS home, task.type, task.payload, task.options,
       task.labels,
       CASE WHEN taken.wake = taken.task THEN timestamptz_send(task.run_at)
            ELSE timestamptz_send(COALESCE((SELECT moved.run_at
                                              FROM rescheduled AS moved
                                             WHERE moved.lane = taken.home
                                               AND moved.task = taken.task
                                             LIMIT 1), task.run_at)) END AS run_at,
       task.expires_at, NULL::timestamptz AS picked_at
  FROM taken
 CROSS JOIN LATERAL (  -- the LIMIT keeps the look-up by key, also in a plan made while the table was tiny
       SELECT *
         FROM task
        WHERE task.lane = taken.home
          AND task.id = taken.task
        LIMIT 1) AS task

-- name: claim_due
-- Take due rows of the wanted lanes, in order, each for the holder whose slot it
-- falls into; each lane stands at most once in the request.  Finds where each
-- lane's share ends, then takes all up to there in one scan: a quarter quicker than
-- locking rows one by one and looking each up again to delete it.
-- Locks: the rows it takes.  It waits a moment for a row that another one is taking;
--        then the statement fails, and claim_around is used instead.
-- Index: due_pkey (lane, wake), for both.  "= ANY (ARRAY[...])" is an equality that the planner cannot sort by: with
--        a plain one it may walk a whole index in order and compare each row, which costs nothing in a plan made
--        while the last vacuum had found the table empty, and 40,000 rows for each lane afterwards.
-- Time:  @until is just after the last wake that is due at @now_ms, which is what the node knows of the database's clock.
--        Where that has gone back since, the clock itself counts: nothing is claimed early.
-- Gives: the rows taken, each lane's in order, then a row without a task for each lane: when its next row is due, and
--        when all were picked.
-- Copies: no holder gets what it takes, so no beat names it: it is released, which costs the task no attempt.
WITH due_by AS MATERIALIZED (
    SELECT set_config('lock_timeout', '20ms', true), at,
           CASE WHEN to_ms(at) >= @now_ms::bigint THEN @until::uuid ELSE mint_wake(to_ms(at) + 1, 0, 0) END AS until
      FROM (SELECT COALESCE(@now::timestamptz, clock_timestamp()) AS at) AS started
),
wanted AS MATERIALIZED (
    SELECT wanted.lane, wanted.hint, wanted.slot, share.wake IS NOT NULL AS is_full,
           COALESCE(share.wake, due_by.until) AS last
      FROM due_by,
           unnest(@lanes::int[], @hints::uuid[], @rooms::int[], @slots::int[]) AS wanted (lane, hint, room, slot)
      LEFT JOIN LATERAL (
           SELECT due.wake
             FROM due
            WHERE due.lane = wanted.lane
              AND due.wake > wanted.hint
              AND due.wake < due_by.until
            ORDER BY due.wake
           OFFSET wanted.room - 1
            LIMIT 1) AS share ON true
),
gone AS (
    DELETE FROM due
     USING wanted
     WHERE due.lane = ANY (ARRAY[wanted.lane])
       AND due.wake > wanted.hint
       AND due.wake <= wanted.last
 RETURNING due.lane, due.wake, due.task, due.number, due.failures, due.crashes, due.releases, wanted.slot,
           COALESCE(due.home, due.lane) AS home
),
taken AS MATERIALIZED (
    SELECT gone.*, (@holders::bigint[])[slot + row_number() OVER (PARTITION BY lane ORDER BY wake)] AS holder
      FROM gone
),
{claimed}
{taken_tasks}
 UNION ALL  -- A lane that was full may have more that is due, although others took part of its share meanwhile: its
            -- share's end stands for that.
SELECT wanted.lane, CASE WHEN wanted.is_full THEN wanted.last ELSE later.wake END, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, due_by.at
  FROM due_by, wanted
  LEFT JOIN LATERAL (
       SELECT due.wake
         FROM due
        WHERE due.lane = wanted.lane
          AND due.wake >= due_by.until
          AND NOT wanted.is_full
        ORDER BY due.wake
        LIMIT 1) AS later ON true;

-- name: claim_around
-- The same, around rows that someone else is taking.
-- Locks: the picked rows, skipping those that someone else is taking.
-- Index: due_pkey (lane, wake); it gives the order, so LIMIT stops the scan.
-- Copies: as claim_due.
WITH due_by AS MATERIALIZED (
    SELECT at,
           CASE WHEN to_ms(at) >= @now_ms::bigint THEN @until::uuid ELSE mint_wake(to_ms(at) + 1, 0, 0) END AS until
      FROM (SELECT COALESCE(@now::timestamptz, clock_timestamp()) AS at) AS started
),
picked AS MATERIALIZED (  -- the LIMIT must not be run again per joined row
    SELECT wanted.lane, waiting.wake, wanted.slot + waiting.place AS slot
      FROM due_by, unnest(@lanes::int[], @hints::uuid[], @rooms::int[], @slots::int[]) AS wanted (lane, hint, room, slot)
     CROSS JOIN LATERAL (
           SELECT wake, row_number() OVER () AS place
             FROM (SELECT wake
                     FROM due
                    WHERE due.lane = wanted.lane
                      AND due.wake > wanted.hint
                      AND due.wake < due_by.until
                    ORDER BY wake
                    LIMIT wanted.room
                      FOR UPDATE SKIP LOCKED) AS locked) AS waiting
),
taken AS (
    DELETE FROM due
     USING picked
     WHERE due.lane = ANY (ARRAY[picked.lane])
       AND due.wake = picked.wake
 RETURNING due.lane, due.wake, due.task, due.number, due.failures, due.crashes, due.releases,
           (@holders::bigint[])[picked.slot] AS holder, COALESCE(due.home, due.lane) AS home
),
{claimed}
{taken_tasks}
 UNION ALL
SELECT wanted.lane, later.wake, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, due_by.at
  FROM due_by, unnest(@lanes::int[]) AS wanted (lane)
  LEFT JOIN LATERAL (
       SELECT due.wake
         FROM due
        WHERE due.lane = wanted.lane
          AND due.wake >= due_by.until
        ORDER BY due.wake
        LIMIT 1) AS later ON true;

-- name: peek
-- The first waiting row of each lane behind its hint and before `until`, due or not; takes nothing.
-- Also what is needed to know when a hint is firm: the transactions that are open,
-- a number above all that have begun (the end of a snapshot is only above those that
-- have ended), and a time before that (now() is the transaction's start).
SELECT asked.lane, first.wake,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest_open,
       pg_current_xact_id()::text::bigint + 1 AS next_new,
       (extract(epoch FROM now()) * 1000000)::bigint AS now_us
  FROM unnest(@lanes::int[], @hints::uuid[]) AS asked (lane, hint)
  LEFT JOIN LATERAL (
       SELECT due.wake
         FROM due
        WHERE due.lane = asked.lane
          AND due.wake > asked.hint
          AND due.wake < @until::uuid
        ORDER BY due.wake
        LIMIT 1) AS first ON true;

-- name: note
-- The same of the transactions alone: what is noted before a look lets it begin later.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest_open,
       pg_current_xact_id()::text::bigint + 1 AS next_new,
       (extract(epoch FROM now()) * 1000000)::bigint AS now_us;
