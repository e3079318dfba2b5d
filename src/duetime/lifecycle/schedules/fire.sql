-- name: read_due
-- The schedules whose turn it is: the first rows of each schedule lane from where it
-- was left, before `until`; takes nothing.  The lanes share the batch evenly, so that
-- a tenant with very many schedules holds up nobody in another lane.
-- Index: due_pkey (lane, wake), from a lower bound on; then primary keys.
-- Gives: a row without `schedule` for a row in due that no schedule knows of (any more).
SELECT found.lane, found.wake, state.schedule, state.next_ms, state.fired, state.recent, state.buffer,
       schedule.tenant, schedule.name, schedule.version, schedule.definition, schedule.calendars, schedule.task_lane,
       octet_length(schedule.task_payload) AS size,
       CASE WHEN position('\x7b7b'::bytea IN schedule.task_payload) > 0 THEN schedule.task_payload END AS payload
  FROM (SELECT asked.lane, waiting.wake, waiting.task
          FROM unnest(@lanes::int[], @since::uuid[]) AS asked (lane, since)
         CROSS JOIN LATERAL (
               SELECT due.wake, due.task, row_number() OVER (ORDER BY due.wake) AS place
                 FROM due
                WHERE due.lane = asked.lane
                  AND due.wake >= asked.since
                  AND due.wake < @until::uuid
                ORDER BY due.wake
                LIMIT @batch::int) AS waiting
         ORDER BY waiting.place, waiting.wake
         LIMIT @batch::int) AS found
  LEFT JOIN LATERAL (
       SELECT *
         FROM schedule_state
        WHERE schedule_state.schedule = (('x' || right(replace(found.task::text, '-', ''), 16))::bit(64)::bigint)
          AND schedule_state.wake = found.wake
        LIMIT 1) AS state ON true
  LEFT JOIN LATERAL (
       SELECT *
         FROM schedule
        WHERE schedule.id = state.schedule
        LIMIT 1) AS schedule ON true
 ORDER BY found.wake;

-- name: read_runs
-- What became of tasks that schedules made.
SELECT asked.task, ended.at AS ended_at, dead.died_at
  FROM unnest(@lanes::int[], @tasks::uuid[]) AS asked (lane, task)
  LEFT JOIN LATERAL (
       SELECT attempt.completed_at AS at
         FROM attempt
        WHERE attempt.lane = asked.lane
          AND attempt.task = asked.task
          AND attempt.final
        ORDER BY attempt.number DESC
        LIMIT 1) AS ended ON true
  LEFT JOIN LATERAL (
       SELECT dead.died_at
         FROM dead
        WHERE dead.lane = asked.lane
          AND dead.task = asked.task
        LIMIT 1) AS dead ON true;

-- name: fire
-- Give schedules their turn: take the row in due, leave what became of each time, its
-- task, and the row of the next turn, all or nothing for each schedule.
-- Locks: schedule_state, skipping those that somebody is changing; a schedule whose
--        wake is not the one that was read has had its turn, or was changed.
-- Time:  refuses ids minted more than the tolerance before the database's clock, as submit does.
-- A time that has its line already (after the database's clock went back, say) gets no
-- second one, no task, and does not count; one that was put aside becomes fired.  "IS TRUE"
-- keeps each IN from becoming a join.
-- Gives: the schedules that had their turn, and the tasks that were made.
-- Copies: names the wake that was read; each turn and each change mints another one.
WITH {fresh_or_later_ids},
moving AS MATERIALIZED (
    SELECT asked.*, fresh.at
      FROM fresh,
           unnest(@schedules::bigint[], @lanes::int[], @wakes::uuid[], @next_wakes::uuid[], @next_times::bigint[],
                  @recents::bytea[], @buffers::bytea[], @skip_times::bigint[], @skip_reasons::text[])
               AS asked (schedule, lane, wake, next_wake, next_ms, recent, buffer, skip_ms, skip_reason)
     CROSS JOIN LATERAL (
           SELECT state.schedule
             FROM schedule_state AS state
            WHERE state.schedule = asked.schedule
              AND state.wake = asked.wake
            LIMIT 1
              FOR UPDATE SKIP LOCKED) AS mine
),
taken AS (
    DELETE FROM due
     USING moving
     WHERE due.lane = ANY (ARRAY[moving.lane])
       AND due.wake = moving.wake
),
ahead AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, next_wake, lpad(to_hex(schedule), 32, '0')::uuid, 1
      FROM moving
     WHERE next_wake IS NOT NULL
),
noted AS (
    INSERT INTO fire (schedule, moment, task, outcome, reason, at)
    SELECT came.schedule, came.moment, came.task, came.outcome, came.reason, fresh.at
      FROM fresh,
           unnest(@fire_schedules::bigint[], @moments::uuid[], @tasks::uuid[], @outcomes::smallint[], @reasons::text[])
               AS came (schedule, moment, task, outcome, reason)
     WHERE (came.schedule IN (SELECT schedule FROM moving)) IS TRUE
        ON CONFLICT (schedule, moment) DO UPDATE
       SET task = excluded.task, outcome = excluded.outcome, reason = excluded.reason, at = excluded.at
     WHERE fire.outcome = 4
       AND excluded.task IS NOT NULL
    RETURNING schedule, moment, task, outcome
),
counted AS (  -- what the lines stand for: of those that were missed, one may stand for many
    SELECT noted.schedule,
           sum(came.times) FILTER (WHERE noted.outcome = 1) AS fired,
           sum(came.times) FILTER (WHERE noted.outcome = 2) AS skipped,
           sum(came.times) FILTER (WHERE noted.outcome = 3) AS missed,
           sum(came.times) FILTER (WHERE noted.outcome = 4) AS buffered
      FROM noted
      JOIN unnest(@fire_schedules::bigint[], @moments::uuid[], @times::int[]) AS came (schedule, moment, times)
        ON came.schedule = noted.schedule
       AND came.moment = noted.moment
     GROUP BY noted.schedule
),
kept AS (
    UPDATE schedule_state AS state
       SET wake = moving.next_wake,
           next_ms = moving.next_ms,
           fired = state.fired + COALESCE(counted.fired, 0),
           skipped = state.skipped + COALESCE(counted.skipped, 0),
           missed = state.missed + COALESCE(counted.missed, 0),
           buffered = state.buffered + COALESCE(counted.buffered, 0),
           recent = moving.recent,
           buffer = moving.buffer,
           last_skip_ms = COALESCE(moving.skip_ms, state.last_skip_ms),
           last_skip_at = CASE WHEN moving.skip_ms IS NULL THEN state.last_skip_at ELSE moving.at END,
           last_skip = CASE WHEN moving.skip_ms IS NULL THEN state.last_skip ELSE moving.skip_reason END
      FROM moving
      LEFT JOIN counted
        ON counted.schedule = moving.schedule
     WHERE state.schedule = ANY (ARRAY[moving.schedule])
),
made AS (
    INSERT INTO task (lane, id, type, payload, options, labels, run_at, expires_at, created_at)
    SELECT schedule.task_lane, came.task, schedule.task_type, COALESCE(came.payload, schedule.task_payload),
           schedule.task_options, schedule.task_labels, came.run_at,
           GREATEST(came.run_at, fresh.at) + schedule.expires_after * interval '1 second', fresh.at
      FROM fresh,
           unnest(@fire_schedules::bigint[], @tasks::uuid[], @payloads::bytea[], @run_ats::timestamptz[])
               AS came (schedule, task, payload, run_at)
     CROSS JOIN LATERAL (
           SELECT *
             FROM schedule
            WHERE schedule.id = came.schedule
            LIMIT 1) AS schedule
     WHERE (came.task IN (SELECT task FROM noted)) IS TRUE
 RETURNING lane, id
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, id, id, 1
      FROM made
)
SELECT schedule, NULL::uuid AS task FROM moving
 UNION ALL
SELECT NULL, id FROM made;

-- name: spawn
-- Fires that are not the schedule's own turn: a trigger, or the next times of a backfill
-- (which must be where it was read, and running).
-- Time:  refuses ids minted too long before or after the database's clock, as submit does.
-- Gives: the tasks that were made.
-- Copies: the times are recorded already, the backfill has continued, or the ids were minted too long ago.
WITH {fresh_ids},
advanced AS (
    UPDATE backfill
       SET reached_ms = @reached_ms::bigint,
           created = created + cardinality(@tasks::uuid[]),
           state = CASE WHEN @is_done::boolean THEN 'done' ELSE state END,
           waits_for = NULL,
           ended_at = CASE WHEN @is_done::boolean THEN fresh.at END
      FROM fresh
     WHERE backfill.id = @backfill::bigint
       AND backfill.reached_ms = @expected_ms::bigint
       AND backfill.state = 'running'
 RETURNING backfill.id
),
allowed AS MATERIALIZED (
    SELECT at
      FROM fresh
     WHERE @backfill::bigint IS NULL
        OR EXISTS (SELECT FROM advanced)
),
noted AS (
    INSERT INTO fire (schedule, moment, task, outcome, reason, at)
    SELECT @schedule::bigint, came.moment, came.task, 1, NULL, allowed.at
      FROM allowed, unnest(@moments::uuid[], @tasks::uuid[]) AS came (moment, task)
        ON CONFLICT DO NOTHING
    RETURNING task
),
made AS (
    INSERT INTO task (lane, id, type, payload, options, labels, run_at, expires_at, created_at)
    SELECT schedule.task_lane, came.task, schedule.task_type, COALESCE(came.payload, schedule.task_payload),
           schedule.task_options, schedule.task_labels, came.run_at,
           GREATEST(came.run_at, allowed.at) + schedule.expires_after * interval '1 second', allowed.at
      FROM allowed,
           unnest(@tasks::uuid[], @payloads::bytea[], @run_ats::timestamptz[]) AS came (task, payload, run_at)
      JOIN schedule
        ON schedule.id = @schedule::bigint
     WHERE (came.task IN (SELECT task FROM noted)) IS TRUE
 RETURNING lane, id
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, id, id, 1
      FROM made
)
SELECT id AS task
  FROM made;

-- name: sweep
-- Schedules that should have a row in due and have none: the row is made anew, for now.
-- Looks at `batch` schedules behind the last one seen.
-- Gives: the last one seen, and the schedules that were healed.
-- Copies: checks after it has the lock of the schedule's state, as the first one did.
WITH seen AS MATERIALIZED (
    SELECT state.schedule, state.lane, state.wake
      FROM schedule_state AS state
     WHERE state.schedule > @after::bigint
     ORDER BY state.schedule
     LIMIT @batch::int
),
broken AS MATERIALIZED (
    SELECT state.schedule, state.lane, state.wake
      FROM seen
     CROSS JOIN LATERAL (
           SELECT schedule_state.*
             FROM schedule_state
            WHERE schedule_state.schedule = seen.schedule
              AND schedule_state.wake = seen.wake
            LIMIT 1
              FOR UPDATE SKIP LOCKED) AS state
     WHERE NOT EXISTS (SELECT FROM due WHERE due.lane = ANY (ARRAY[seen.lane]) AND due.wake = seen.wake)
),
healed AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, wake, lpad(to_hex(schedule), 32, '0')::uuid, 1
      FROM broken
        ON CONFLICT DO NOTHING
    RETURNING wake
)
SELECT (SELECT max(schedule) FROM seen) AS last, (SELECT count(*) FROM seen) AS seen,
       ARRAY(SELECT wake FROM healed) AS healed;

-- name: forget
-- Rows in the schedule lanes that no schedule knows of.
-- Copies: names wakes, and no wake is minted twice.
DELETE FROM due
 USING unnest(@lanes::int[], @wakes::uuid[]) AS asked (lane, wake)
 WHERE due.lane = ANY (ARRAY[asked.lane])
   AND due.wake = asked.wake
   AND due.lane < 256
   AND NOT EXISTS (SELECT FROM schedule_state AS state
                    WHERE state.schedule = (('x' || right(replace(due.task::text, '-', ''), 16))::bit(64)::bigint)
                      AND state.wake = due.wake);
