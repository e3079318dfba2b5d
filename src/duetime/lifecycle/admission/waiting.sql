-- name: read_sizes
-- Of each table where tasks wait: its bytes, and how many rows were ever put in.  A partition that goes meanwhile has none.
SELECT relid::oid::bigint AS relation, relid = 'held'::regclass AS is_held,
       COALESCE(pg_relation_size(relid), 0) AS size, COALESCE(pg_stat_get_tuples_inserted(relid), 0) AS inserted
  FROM (SELECT relid FROM pg_partition_tree('due') UNION ALL SELECT 'held'::regclass) AS waiting (relid);

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
