-- name: read_tenants
-- The names that lanes have for people.
-- Index: lane_pkey, tenant_pkey.
SELECT lane.id AS lane, tenant.name AS tenant, lane.queue
  FROM lane
  JOIN tenant ON tenant.id = lane.tenant
 WHERE lane.id = ANY (@lanes::int[]);

-- name: read_types
-- The types of a few tasks, by key.
-- Index: task_pkey (lane, id); the LIMIT keeps the look-up by key.
SELECT asked.task, found.type
  FROM unnest(@lanes::int[], @tasks::uuid[]) AS asked (lane, task)
 CROSS JOIN LATERAL (
       SELECT task.type
         FROM task
        WHERE task.lane = asked.lane
          AND task.id = asked.task
        LIMIT 1) AS found;
