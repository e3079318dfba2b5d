-- name: read_sizes
-- Bytes of the tables where tasks wait.  A partition that goes meanwhile has none.
SELECT COALESCE((SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree('due')), 0)::bigint AS due,
       pg_relation_size('held') AS held;

-- name: count_waiting
-- How many tasks of a tenant wait, counted up to a bound.
-- Index: lane_tenant_queue_class_kind_requires_key, then due_pkey and held_pkey by lane; LIMIT stops the scan.
SELECT count(*) AS waiting
  FROM (SELECT
          FROM lane
         CROSS JOIN LATERAL (
               SELECT FROM due WHERE due.lane = lane.id
                UNION ALL
               SELECT FROM held WHERE held.lane = lane.id) AS each_task
         WHERE lane.tenant = @tenant::int
         LIMIT @most::bigint) AS counted;
