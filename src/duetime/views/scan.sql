-- Keyset scans behind the lists: one for each table that holds a state.
--
-- Each reads up to @share rows of every lane between its own @lows (included)
-- and @highs (excluded), in key order, so that LIMIT stops the index scan.  Of what
-- does not match only the last row of a full share is given (`is_cut`), as the
-- position to go on from: the caller merges the lanes.  @types are the patterns of a key that is confined to types.

-- fragment: wanted
-- The lanes to read, and between which positions.
unnest(@lanes::int[], @lows::uuid[], @highs::uuid[]) AS wanted (lane, low, high)

-- fragment: fits
-- Whether a candidate that has its type and labels with it is what is asked for.
(@type::text IS NULL OR candidate.type = @type)
 AND (@types::text[] IS NULL OR candidate.type LIKE ANY (@types))
 AND (@labels::jsonb IS NULL OR candidate.labels @> @labels)

-- fragment: task_fits
-- Whether the task of a candidate (home, task) is what is asked for; it is looked up only if something is.
-- Index: task_pkey (lane, id).
(@type::text IS NULL AND @types::text[] IS NULL AND @labels::jsonb IS NULL
 OR EXISTS (SELECT
              FROM task
             WHERE task.lane = candidate.home
               AND task.id = candidate.task
               AND (@type IS NULL OR task.type = @type)
               AND (@types IS NULL OR task.type LIKE ANY (@types))
               AND (@labels IS NULL OR task.labels @> @labels)))

-- name: scan_task
-- Every task of the lanes, latest due first.
-- Index: task_pkey (lane, id).
SELECT *
  FROM (
       SELECT wanted.lane, candidate.id AS position, candidate.id AS task,
              {fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, row_number() OVER () AS place
                FROM (
                    SELECT id, type, labels
                      FROM task
                     WHERE task.lane = wanted.lane
                       AND task.id >= wanted.low
                       AND task.id < wanted.high
                     ORDER BY id DESC
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_newest
-- Every task of the lanes whose time has come, latest first: by its due time, or by the time at which it was
-- cancelled or made due before that.
-- Index: task_pkey (lane, id); listed_place (lane, place) and then task_pkey; listed_pkey (lane, task) for matches.
SELECT *
  FROM (SELECT wanted.lane, candidate.position, candidate.task,
               {fits}
               AND candidate.task >= @earliest::uuid
               AND candidate.task < @latest::uuid
               AND (candidate.is_placed
                    OR NOT EXISTS (SELECT FROM listed WHERE listed.lane = wanted.lane AND listed.task = candidate.task))
                   AS is_match,
               candidate.place = @share::int AS is_cut
          FROM {wanted}
         CROSS JOIN LATERAL (
               SELECT read.*, row_number() OVER () AS place
                 FROM (SELECT *
                         FROM ((SELECT id AS position, id AS task, type, labels, false AS is_placed
                                  FROM task
                                 WHERE task.lane = wanted.lane
                                   AND task.id >= GREATEST(wanted.low, @earliest::uuid)
                                   AND task.id < LEAST(wanted.high, @latest::uuid)
                                 ORDER BY id DESC
                                 LIMIT @share::int)
                                UNION ALL
                               (SELECT listed.place, listed.task, early.type, early.labels, true
                                  FROM listed
                                 CROSS JOIN LATERAL (
                                       SELECT type, labels
                                         FROM task
                                        WHERE task.lane = wanted.lane
                                          AND task.id = listed.task
                                        LIMIT 1) AS early
                                 WHERE listed.lane = wanted.lane
                                   AND listed.place >= wanted.low
                                   AND listed.place < wanted.high
                                 ORDER BY listed.place DESC
                                 LIMIT @share::int)) AS found
                        ORDER BY position DESC
                        LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_coming
-- Every task of the lanes whose time is still to come, soonest first, without those that scan_newest gives.
-- Index: task_pkey (lane, id); listed_pkey (lane, task) for matches.
SELECT *
  FROM (SELECT wanted.lane, candidate.id AS position, candidate.id AS task,
               {fits}
               AND NOT EXISTS (SELECT FROM listed WHERE listed.lane = wanted.lane AND listed.task = candidate.id)
                   AS is_match,
               candidate.place = @share::int AS is_cut
          FROM {wanted}
         CROSS JOIN LATERAL (
               SELECT read.*, row_number() OVER () AS place
                 FROM (SELECT id, type, labels
                         FROM task
                        WHERE task.lane = wanted.lane
                          AND task.id >= wanted.low
                          AND task.id < wanted.high
                        ORDER BY id
                        LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: find_schedule
-- Index: schedule_tenant_name_key.
SELECT id
  FROM schedule
 WHERE tenant = @tenant::int
   AND name = @name::text;

-- name: scan_fire
-- Tasks that a schedule made, latest fire time first, of the lanes @fitting; the one stream has the number of no lane.
-- Index: fire_pkey (schedule, moment); task_pkey (lane, id) when type or labels are asked for.
SELECT *
  FROM (SELECT wanted.lane, candidate.moment AS position, candidate.task,
               candidate.home = ANY (@fitting::int[])
               AND candidate.task >= @earliest::uuid
               AND candidate.task < @latest::uuid
               AND {task_fits} AS is_match,
               candidate.place = @share::int AS is_cut
          FROM {wanted}
         CROSS JOIN LATERAL (
               SELECT read.*, ('x' || right(replace(read.task::text, '-', ''), 8))::bit(32)::int AS home,
                      row_number() OVER () AS place
                 FROM (SELECT moment, task
                         FROM fire
                        WHERE fire.schedule = @schedule::bigint
                          AND fire.moment >= wanted.low
                          AND fire.moment < wanted.high
                        ORDER BY moment DESC
                        LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_due
-- Waiting tasks, soonest first: @state is scheduled or ready.
-- Index: due_pkey (lane, wake); task_pkey (lane, id) when type or labels are asked for.
-- Time:  a wake from `edge` on lies in the future.
WITH {moment}
SELECT *
  FROM (
       SELECT wanted.lane, candidate.wake AS position, candidate.task,
              (@state::text = 'ready' OR candidate.failures + candidate.crashes = 0)
              AND {task_fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, row_number() OVER () AS place
                FROM (
                    SELECT wake, task, failures, crashes, COALESCE(home, lane) AS home
                      FROM due
                     WHERE due.lane = wanted.lane
                       AND due.wake >= GREATEST(wanted.low, CASE WHEN @state <> 'ready' THEN (SELECT edge FROM moment) END)
                       AND due.wake < LEAST(wanted.high, CASE WHEN @state = 'ready' THEN (SELECT edge FROM moment) END)
                     ORDER BY wake
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_retrying
-- Tasks that wait for another attempt, latest (first) due time first.
-- Only what has been moved is in due_task, so a few retries are found at once
-- among millions that wait for their first attempt.
-- Index: due_task (home lane, task) of every partition, merged; task_pkey (lane, id) when type or labels are asked for.
-- Time:  a wake from `edge` on lies in the future.
WITH {moment}
SELECT *
  FROM (
       SELECT wanted.lane, candidate.task AS position, candidate.task,
              candidate.failures + candidate.crashes > 0
              AND candidate.wake >= moment.edge
              AND {task_fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM moment, {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, wanted.lane AS home, row_number() OVER () AS place
                FROM (
                    SELECT wake, task, failures, crashes
                      FROM due
                     WHERE COALESCE(due.home, due.lane) = wanted.lane
                       AND due.task >= wanted.low
                       AND due.task < wanted.high
                       AND due.wake <> due.task
                     ORDER BY task DESC
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_claim
-- Running tasks, latest due first.
-- Index: claim_pkey (lane, task); task_pkey (lane, id) when type or labels are asked for.
SELECT *
  FROM (
       SELECT wanted.lane, candidate.task AS position, candidate.task,
              {task_fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, wanted.lane AS home, row_number() OVER () AS place
                FROM (
                    SELECT task
                      FROM claim
                     WHERE claim.lane = wanted.lane
                       AND claim.task >= wanted.low
                       AND claim.task < wanted.high
                     ORDER BY task DESC
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_held
-- Tasks that are kept back for @reason, latest due first.
-- Index: held_pkey (lane, task); task_pkey (lane, id) when type or labels are asked for.
SELECT *
  FROM (
       SELECT wanted.lane, candidate.task AS position, candidate.task,
              candidate.reason = @reason::smallint
              AND {task_fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, wanted.lane AS home, row_number() OVER () AS place
                FROM (
                    SELECT task, reason
                      FROM held
                     WHERE held.lane = wanted.lane
                       AND held.task >= wanted.low
                       AND held.task < wanted.high
                     ORDER BY task DESC
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_dead
-- Dead letters, latest due first.
-- Index: dead_pkey (lane, task); task_pkey (lane, id) when type or labels are asked for.
SELECT *
  FROM (
       SELECT wanted.lane, candidate.task AS position, candidate.task,
              {task_fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, wanted.lane AS home, row_number() OVER () AS place
                FROM (
                    SELECT task
                      FROM dead
                     WHERE dead.lane = wanted.lane
                       AND dead.task >= wanted.low
                       AND dead.task < wanted.high
                     ORDER BY task DESC
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;

-- name: scan_attempt
-- Tasks that are over with @outcome, latest due first.
-- A task's last attempt comes first here, and only that one can be final: the
-- position of a lane that is cut within a task may pass over the rest of it.
-- Index: attempt_pkey (lane, task, number); task_pkey (lane, id) when type or labels are asked for.
SELECT *
  FROM (
       SELECT wanted.lane, candidate.task AS position, candidate.task,
              candidate.final
              AND candidate.outcome = @outcome::smallint
              AND {task_fits} AS is_match,
              candidate.place = @share::int AS is_cut
         FROM {wanted}
        CROSS JOIN LATERAL (
              SELECT read.*, wanted.lane AS home, row_number() OVER () AS place
                FROM (
                    SELECT task, outcome, final
                      FROM attempt
                     WHERE attempt.lane = wanted.lane
                       AND attempt.task >= wanted.low
                       AND attempt.task < wanted.high
                     ORDER BY task DESC, number DESC
                     LIMIT @share::int) AS read) AS candidate) AS looked
 WHERE is_cut OR is_match;
