-- name: read_states
-- The state of each task, as a user sees it: all six tables in one snapshot.
-- Index: the primary key of each, by (lane, task); due_task (home lane, task) only for
--        tasks that are nowhere else, because it has to ask every partition.  The LIMITs
--        keep the look-ups by key, whatever the planner thinks of the tables.
-- Time:  a wake from `edge` on lies in the future.
-- Gives: no row for an id that is no task.
WITH {moment},
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
      {places_of_task}
)
SELECT id,
       {state_of_task}
  FROM found, moment;
