-- name: read_shards
-- The shards in which a tenant may have tasks: its own, and those of its lanes.
-- Index: tenant_pkey; lane_key (tenant, …).
SELECT shard::int
  FROM tenant
 WHERE id = @tenant::int
 UNION
SELECT id % 256
  FROM lane
 WHERE tenant = @tenant::int;
