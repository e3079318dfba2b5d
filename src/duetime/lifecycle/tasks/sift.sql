-- name: sift
-- Of the rows at the front of a lane, those of types that nobody who waits there handles go to the lanes of their types
-- (or wait where they are at home, each a step later than the one before), with the same number, in order.
-- Takes: due, of one lane, at most @most rows.  Leaves: due in other lanes.
-- Locks: the rows at the front, skipping those that someone else is taking.
-- Index: due_pkey (lane, wake), which gives the order, so LIMIT stops the scan; task_pkey.
-- Time:  @until is just after the last wake that is due; new wakes are minted from the database's clock, read after the
--        transaction has its number; @salt counts on, as for `park`.
-- Gives: how many were looked at, the last of them, how many were moved, and the first new wake of each lane.
-- Copies: tasks wait in another lane, from which they continue like all tasks there.
WITH started AS MATERIALIZED (
    SELECT pg_current_xact_id() AS transaction, clock_timestamp() AS at, @salt::bigint AS salt
),
front AS MATERIALIZED (  -- the LIMIT must not be run again per joined row
    SELECT due.lane, due.wake, due.task, COALESCE(due.home, due.lane) AS home
      FROM due
     WHERE due.lane = ANY (ARRAY[@lane::int])
       AND due.wake > @hint::uuid
       AND due.wake < @until::uuid
     ORDER BY due.wake
     LIMIT @most::int
       FOR UPDATE SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT front.lane, front.wake, front.home, asked.lane AS target, asked.wait_ms, row_number() OVER (ORDER BY front.wake) AS ordinal
      FROM front
     CROSS JOIN LATERAL (  -- the LIMIT keeps the look-up by key, also in a plan made while the table was tiny
           SELECT type
             FROM task
            WHERE task.lane = front.home
              AND task.id = front.task
            LIMIT 1) AS task
      JOIN unnest(@types::text[], @homes::int[], @lanes::int[], @waits_ms::bigint[]) AS asked (type, home, lane, wait_ms)
        ON asked.type = task.type
       AND asked.home = front.home
),
gone AS (
    DELETE FROM due
     USING picked
     WHERE due.lane = ANY (ARRAY[picked.lane])
       AND due.wake = picked.wake
 RETURNING due.task, due.number, due.failures, due.crashes, due.releases, picked.home, picked.target, picked.wait_ms,
           picked.ordinal
),
moved AS (
    INSERT INTO due (lane, wake, task, number, failures, crashes, releases, home)
    SELECT target, mint_wake(to_ms(at) + CASE WHEN wait_ms > 0 THEN wait_ms + @step_ms::bigint * ordinal ELSE 0 END,
                             target, salt + ordinal),
           task, number, failures, crashes, releases, NULLIF(home, target)
      FROM gone, started
 RETURNING lane, wake
)
SELECT (SELECT count(*) FROM front) AS looked_at,
       (SELECT wake FROM front ORDER BY wake DESC LIMIT 1) AS last,
       (SELECT count(*) FROM moved) AS moved,
       ARRAY(SELECT DISTINCT ON (lane) wake FROM moved ORDER BY lane, wake) AS wakes;
