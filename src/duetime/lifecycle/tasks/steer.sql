-- Moves that people and programs ask for.  Each takes the row in which the task
-- waits, and leaves the next one from what the delete returned.  A task's first
-- wake is its id; later wakes are found by the partial index due_task, by the lane that is
-- the task's home, also where it waits at a gate, and then taken by key like first ones.
-- Locks: the rows taken, in the order asked (sorted by the caller).
-- "lane = ANY (ARRAY[...])" keeps the look-up by key, as in claim.sql.

-- fragment: asked
-- Holds: the tasks that the caller named.
asked AS MATERIALIZED (
    SELECT lane, task
      FROM unnest(@lanes::int[], @tasks::uuid[]) AS asked (lane, task)
)

-- fragment: later_wake
-- Finds the wake of a task in `asked` that does not wait under its first one, wherever it waits.
-- Index: due_task (home lane, task).
CROSS JOIN LATERAL (
      SELECT due.lane, due.wake
        FROM due
       WHERE COALESCE(due.home, due.lane) = asked.lane
         AND due.task = asked.task
         AND due.wake <> due.task
       LIMIT 1) AS later

-- fragment: waiting
-- Holds: under which lane and wake each task in `asked` may wait.
waiting AS MATERIALIZED (
    SELECT asked.lane, asked.task AS wake, asked.task
      FROM asked
     UNION ALL
    SELECT later.lane, later.wake, asked.task
      FROM asked
     {later_wake}
)

-- fragment: woken
-- Takes: the rows of due that are in `waiting`.
woken AS (
    DELETE FROM due
     USING waiting
     WHERE due.lane = ANY (ARRAY[waiting.lane])
       AND due.wake = waiting.wake
       AND due.task = waiting.task
 RETURNING COALESCE(due.home, due.lane) AS lane, due.wake, due.task, due.number, due.failures, due.crashes,
           due.releases
)

-- fragment: kept_back
-- Takes: the rows of held that are in `asked`.
kept_back AS (
    DELETE FROM held
     USING asked
     WHERE held.lane = ANY (ARRAY[asked.lane])
       AND held.task = asked.task
 RETURNING held.lane, held.task, held.number
)

-- name: cancel
-- Takes: due, held, dead or claim.  Leaves: a final attempt, cancelled; for what was not due yet a place in lists.
WITH started AS MATERIALIZED (
    SELECT to_ms(COALESCE(@now::timestamptz, clock_timestamp())) AS ms
),
{asked},
{waiting},
{woken},
{kept_back},
dead_letter AS (
    DELETE FROM dead
     USING asked
     WHERE dead.lane = ANY (ARRAY[asked.lane])
       AND dead.task = asked.task
 RETURNING dead.lane, dead.task, dead.number
),
running AS (
    DELETE FROM claim
     USING asked
     WHERE claim.lane = ANY (ARRAY[asked.lane])
       AND claim.task = asked.task
 RETURNING claim.lane, claim.task, claim.number, claim.holder, claim.picked_at
),
placed AS (
    INSERT INTO listed (lane, task, place)
    SELECT early.lane, early.task, place_at(started.ms, early.task)
      FROM (SELECT lane, task FROM woken UNION ALL SELECT lane, task FROM kept_back) AS early, started
     WHERE early.task >= mint_wake(started.ms + 1, 0, 0)
     ORDER BY early.task
        ON CONFLICT (lane, task) DO UPDATE SET place = excluded.place
)
INSERT INTO attempt (lane, task, number, outcome, final, holder, picked_at, detail)
SELECT lane, task, number, 6, true, NULL::bigint, NULL::timestamptz, @detail::bytea FROM woken
 UNION ALL
SELECT lane, task, number, 6, true, NULL::bigint, NULL::timestamptz, @detail::bytea FROM kept_back
 UNION ALL  -- the dead letter's own number has been tried
SELECT lane, task, number + 1, 6, true, NULL::bigint, NULL::timestamptz, @detail::bytea FROM dead_letter
 UNION ALL
SELECT lane, task, number, 6, true, holder, picked_at, @detail::bytea FROM running
RETURNING task, number, NULL::uuid AS wake;

-- name: pause
-- Takes: due.  Leaves: held, with the same wake and number.
WITH {asked},
{waiting},
{woken}
INSERT INTO held (lane, task, wake, number, failures, crashes, releases, reason)
SELECT lane, task, wake, number, failures, crashes, releases, 1 FROM woken
RETURNING task, NULL::uuid AS wake;

-- name: resume
-- Takes: held (paused).  Leaves: due, at its old time, or now if that has passed.
WITH {started_with_salt},
taken AS (
    DELETE FROM held
     USING unnest(@lanes::int[], @tasks::uuid[]) WITH ORDINALITY AS asked (lane, task, place)
     WHERE held.lane = ANY (ARRAY[asked.lane])
       AND held.task = asked.task
       AND held.reason = 1
 RETURNING held.*, asked.place
)
INSERT INTO due (lane, wake, task, number, failures, crashes, releases)
SELECT lane,
       -- A wake of another lane is that of a gate: it goes home.
       CASE WHEN due_ms(wake) > to_ms(at) AND ('x' || right(wake::text, 8))::bit(32)::int = lane THEN wake
            ELSE mint_wake(GREATEST(due_ms(wake), to_ms(at)), lane, salt + place) END,
       task, number, failures, crashes, releases
  FROM taken, started
RETURNING task, wake;

-- name: run_now
-- Takes: due (not due yet) or held (paused).  Leaves: due, now; for what was not due yet a place in lists.
WITH {started_with_salt},
asked AS MATERIALIZED (
    SELECT lane, task, place
      FROM unnest(@lanes::int[], @tasks::uuid[]) WITH ORDINALITY AS asked (lane, task, place)
),
waiting AS MATERIALIZED (
    SELECT asked.lane, asked.task AS wake, asked.task, asked.place
      FROM asked
     UNION ALL
    SELECT later.lane, later.wake, asked.task, asked.place
      FROM asked
     {later_wake}
),
woken AS (
    DELETE FROM due
     USING waiting, started
     WHERE due.lane = ANY (ARRAY[waiting.lane])
       AND due.wake = waiting.wake
       AND due.task = waiting.task
       AND due_ms(due.wake) > to_ms(started.at)
 RETURNING COALESCE(due.home, due.lane) AS lane, due.task, due.number, due.failures, due.crashes, due.releases,
           waiting.place
),
kept_back AS (
    DELETE FROM held
     USING asked
     WHERE held.lane = ANY (ARRAY[asked.lane])
       AND held.task = asked.task
       AND held.reason = 1
 RETURNING held.*, asked.place
),
taken AS (
    SELECT lane, task, number, failures, crashes, releases, place FROM woken
     UNION ALL
    SELECT lane, task, number, failures, crashes, releases, place FROM kept_back
),
placed AS (
    INSERT INTO listed (lane, task, place)
    SELECT taken.lane, taken.task, place_at(to_ms(started.at), taken.task)
      FROM taken, started
     WHERE taken.task >= mint_wake(to_ms(started.at) + 1, 0, 0)
     ORDER BY taken.task
        ON CONFLICT (lane, task) DO UPDATE SET place = excluded.place
)
INSERT INTO due (lane, wake, task, number, failures, crashes, releases)
SELECT lane, mint_wake(to_ms(at), lane, salt + place), task, number, failures, crashes, releases
  FROM taken, started
RETURNING task, wake;

-- name: reschedule
-- Takes: due or held (paused).  Leaves: the same, for another time, never before now, and that time in rescheduled.
-- Locks: who has taken the row in due or held is alone with the task's row in rescheduled.
WITH {started_with_salt},
asked AS MATERIALIZED (
    SELECT lane, task, mint_wake(GREATEST(to_ms(at), @run_at_ms::bigint), lane, salt + place) AS wake
      FROM started, unnest(@lanes::int[], @tasks::uuid[]) WITH ORDINALITY AS asked (lane, task, place)
),
waiting AS MATERIALIZED (
    SELECT asked.lane, asked.task AS wake, asked.task, asked.wake AS next_wake
      FROM asked
     UNION ALL
    SELECT later.lane, later.wake, asked.task, asked.wake AS next_wake
      FROM asked
     {later_wake}
),
woken AS (
    DELETE FROM due
     USING waiting
     WHERE due.lane = ANY (ARRAY[waiting.lane])
       AND due.wake = waiting.wake
       AND due.task = waiting.task
 RETURNING COALESCE(due.home, due.lane) AS lane, due.task, due.number, due.failures, due.crashes, due.releases,
           waiting.next_wake AS wake
),
kept_back AS (
    DELETE FROM held
     USING asked
     WHERE held.lane = ANY (ARRAY[asked.lane])
       AND held.task = asked.task
       AND held.reason = 1
 RETURNING held.lane, held.task, held.number, held.failures, held.crashes, held.releases, asked.wake
),
waits AS (
    INSERT INTO due (lane, wake, task, number, failures, crashes, releases)
    SELECT lane, wake, task, number, failures, crashes, releases FROM woken
 RETURNING task, wake
),
stays AS (
    INSERT INTO held (lane, task, wake, number, failures, crashes, releases, reason)
    SELECT lane, task, wake, number, failures, crashes, releases, 1 FROM kept_back
 RETURNING task, NULL::uuid AS wake
),
noted AS (
    INSERT INTO rescheduled (lane, task, run_at)
    SELECT moved.lane, moved.task, GREATEST(started.at, @run_at::timestamptz)
      FROM started, (SELECT lane, task FROM woken
                      UNION ALL
                     SELECT lane, task FROM kept_back) AS moved
        ON CONFLICT (lane, task) DO UPDATE
       SET run_at = excluded.run_at
)
SELECT task, wake FROM waits
 UNION ALL
SELECT task, wake FROM stays;

-- name: redrive
-- Takes: dead.  Leaves: due, with fresh budgets, one every @step_ms from now.
WITH {started_with_salt},
taken AS (
    DELETE FROM dead
     USING unnest(@lanes::int[], @tasks::uuid[]) WITH ORDINALITY AS asked (lane, task, place)
     WHERE dead.lane = ANY (ARRAY[asked.lane])
       AND dead.task = asked.task
 RETURNING dead.lane, dead.task, dead.number, asked.place
)
INSERT INTO due (lane, wake, task, number)
SELECT lane, mint_wake(to_ms(at) + floor((row_number() OVER (ORDER BY place) - 1) * @step_ms::float8)::bigint, lane,
                       salt + place),
       task, number + 1
  FROM taken, started
RETURNING task, wake;

-- name: drop
-- Takes: dead.  Leaves: a final attempt, so that the task is over.
WITH taken AS (
    DELETE FROM dead
     USING unnest(@lanes::int[], @tasks::uuid[]) AS asked (lane, task)
     WHERE dead.lane = ANY (ARRAY[asked.lane])
       AND dead.task = asked.task
 RETURNING dead.lane, dead.task, dead.number
)
INSERT INTO attempt (lane, task, number, outcome, final, detail)
SELECT lane, task, number + 1, 6, true, @detail::bytea
  FROM taken
RETURNING task, NULL::uuid AS wake;

-- name: expire
-- Takes: due or held rows whose task's end has come, found by the index task_expires.
-- Leaves: a final attempt, expired.
-- Copies: names an end that has passed, which no verb changes; an expired task is over.
WITH asked AS MATERIALIZED (
    SELECT task.lane, task.id AS task, task.expires_at
      FROM task
     WHERE (task.expires_at, task.id) > (@after::timestamptz, @after_task::uuid)
       AND task.expires_at <= @until::timestamptz
     ORDER BY task.expires_at, task.id
     LIMIT @batch::int
),
{waiting},
{woken},
{kept_back},
written AS (
    INSERT INTO attempt (lane, task, number, outcome, final)
    SELECT lane, task, number, 7, true FROM woken
     UNION ALL
    SELECT lane, task, number, 7, true FROM kept_back
 RETURNING task
)
SELECT (SELECT count(*) FROM asked) AS seen, (SELECT count(*) FROM written) AS expired,
       asked.expires_at AS reached, asked.task AS reached_task
  FROM asked
 ORDER BY asked.expires_at DESC, asked.task DESC
 LIMIT 1;
