-- name: read_states
-- The state of each task, as a user sees it: all six tables in one snapshot.
-- Index: the primary key of each, by (lane, task); due_task (home lane, task) only for
--        tasks that are nowhere else, because it has to ask every partition.  The LIMITs
--        keep the look-ups by key, whatever the planner thinks of the tables.
-- Time:  a wake from `edge` on lies in the future.
-- Gives: no row for an id that is no task.
WITH moment AS MATERIALIZED (
    SELECT mint_wake(floor(extract(epoch FROM COALESCE(@now::timestamptz, clock_timestamp())) * 1000)::bigint + 1,
                     0, 0) AS edge
),
found AS MATERIALIZED (
    SELECT wanted.id,
           claim.task IS NOT NULL AS is_running,
           held.reason AS held_reason,
           dead.task IS NOT NULL AS is_dead,
           COALESCE(first.wake, later.wake) AS wake,
           COALESCE(first.failures + first.crashes, later.failures + later.crashes) AS troubles,
           last.final AS is_over,
           last.outcome
      FROM unnest(@lanes::int[], @ids::uuid[]) AS wanted (lane, id)
     CROSS JOIN LATERAL (
           SELECT
             FROM task
            WHERE task.lane = wanted.lane
              AND task.id = wanted.id
            LIMIT 1) AS task
      LEFT JOIN LATERAL (
           SELECT task
             FROM claim
            WHERE claim.lane = wanted.lane
              AND claim.task = wanted.id
            LIMIT 1) AS claim
        ON true
      LEFT JOIN LATERAL (
           SELECT task, reason
             FROM held
            WHERE held.lane = wanted.lane
              AND held.task = wanted.id
            LIMIT 1) AS held
        ON true
      LEFT JOIN LATERAL (
           SELECT task
             FROM dead
            WHERE dead.lane = wanted.lane
              AND dead.task = wanted.id
            LIMIT 1) AS dead
        ON true
      LEFT JOIN LATERAL (
           SELECT task, wake, failures, crashes
             FROM due
            WHERE due.lane = wanted.lane
              AND due.wake = wanted.id
              AND due.task = wanted.id
            LIMIT 1) AS first
        ON true
      LEFT JOIN LATERAL (
           SELECT final, outcome
             FROM attempt
            WHERE attempt.lane = wanted.lane
              AND attempt.task = wanted.id
            ORDER BY number DESC
            LIMIT 1) AS last
        ON true
      LEFT JOIN LATERAL (
           SELECT wake, failures, crashes
             FROM due
            WHERE COALESCE(due.home, due.lane) = wanted.lane
              AND due.task = wanted.id
              AND due.wake <> due.task
              AND COALESCE(claim.task, held.task, dead.task, first.task) IS NULL
              AND (last.final AND last.outcome IN (1, 6, 7)) IS NOT TRUE
            LIMIT 1) AS later
        ON true
)
SELECT id,
       CASE WHEN is_running THEN 'running'
            WHEN held_reason = 1 THEN 'paused'
            WHEN held_reason = 2 THEN 'blocked'
            WHEN is_dead THEN 'dead'
            WHEN wake < edge THEN 'ready'
            WHEN wake IS NOT NULL AND troubles > 0 THEN 'retrying'
            WHEN wake IS NOT NULL THEN 'scheduled'
            WHEN NOT is_over THEN NULL
            WHEN outcome = 1 THEN 'succeeded'
            WHEN outcome = 6 THEN 'cancelled'
            WHEN outcome = 7 THEN 'expired'
            -- At most once: the failure was final, and its dead letter is past its retention.
            WHEN is_over THEN 'dead'
       END AS state
  FROM found, moment;
