-- name: read_dead
-- Dead letters with their last error, in the order asked for.
-- Index: dead_pkey, task_pkey, rescheduled_pkey by (lane, task); attempt_pkey (lane, task, number) from its end.
-- Gives: as many as fit (see pages.py); no row for a task that is not dead (any more).
WITH found AS MATERIALIZED (
    SELECT wanted.place, dead.lane, dead.task AS id, dead.number, dead.reason, dead.died_at,
           task.type, task.labels, COALESCE(moved.run_at, task.run_at) AS run_at, task.created_at, last.detail, last.worker,
           COALESCE(octet_length(last.detail), 0) + COALESCE(octet_length(task.labels::text), 0) AS bytes
      FROM unnest(@lanes::int[], @ids::uuid[]) WITH ORDINALITY AS wanted (lane, id, place)
     CROSS JOIN LATERAL (  -- the LIMITs keep the look-ups by key, whatever the planner thinks of the tables
           SELECT *
             FROM dead
            WHERE dead.lane = wanted.lane
              AND dead.task = wanted.id
            LIMIT 1) AS dead
     {task_wanted}
      {time_moved}
      LEFT JOIN LATERAL (
           SELECT attempt.detail, holder.name AS worker
             FROM attempt
             LEFT JOIN LATERAL (
                  SELECT holder.name
                    FROM holder
                   WHERE holder.id = attempt.holder
                   LIMIT 1) AS holder ON true
            WHERE attempt.lane = wanted.lane
              AND attempt.task = wanted.id
            ORDER BY attempt.number DESC
            LIMIT 1) AS last
        ON true
),
weighed AS (
    SELECT found.*, count(*) OVER () AS found,
           sum(bytes) OVER (ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM found
)
SELECT place, lane, id, number, reason, died_at, type, labels, run_at, created_at, detail, worker, found
  FROM weighed
 WHERE COALESCE(bytes_before, 0) < @bytes::bigint
 ORDER BY place;
