-- name: read_dead
-- Dead letters with their last error, in the order asked for.
-- Index: dead_pkey, task_pkey by (lane, task); attempt_pkey (lane, task, number) from its end.
-- Gives: no row for a task that is not dead (any more).
SELECT dead.lane, dead.task AS id, dead.number, dead.reason, dead.died_at,
       task.type, task.labels, task.run_at, task.created_at, last.detail, last.worker
  FROM unnest(@lanes::int[], @ids::uuid[]) WITH ORDINALITY AS wanted (lane, id, place)
  JOIN dead
    ON dead.lane = wanted.lane
   AND dead.task = wanted.id
  JOIN task
    ON task.lane = wanted.lane
   AND task.id = wanted.id
  LEFT JOIN LATERAL (
       SELECT attempt.detail, holder.name AS worker
         FROM attempt
         LEFT JOIN holder
           ON holder.id = attempt.holder
        WHERE attempt.lane = wanted.lane
          AND attempt.task = wanted.id
        ORDER BY attempt.number DESC
        LIMIT 1) AS last
    ON true
 ORDER BY wanted.place;
