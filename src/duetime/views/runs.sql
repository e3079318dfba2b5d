-- name: read_ends
-- When tasks were over and what was said of it, of those that are.
-- Index: attempt_pkey (lane, task, number), from its end.
SELECT wanted.id, last.completed_at, last.detail
  FROM unnest(@lanes::int[], @ids::uuid[]) AS wanted (lane, id)
 CROSS JOIN LATERAL (
       SELECT completed_at, detail, final
         FROM attempt
        WHERE attempt.lane = wanted.lane
          AND attempt.task = wanted.id
        ORDER BY number DESC
        LIMIT 1) AS last
 WHERE last.final;
