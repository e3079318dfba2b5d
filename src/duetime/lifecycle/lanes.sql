-- fragment: lanes
-- Gives: lanes, with what their tenants are called.
SELECT lane.id, lane.tenant, tenant.name, lane.queue, lane.class, lane.kind, lane.requires, lane.gate, lane.part
  FROM lane
  LEFT JOIN tenant
    ON tenant.id = lane.tenant

-- name: read_all
-- With what the tenants are called; a lane counts even if nobody can say that.
{lanes};

-- name: read_one
-- Index: lane_pkey (id); tenant_pkey.
{lanes}
 WHERE lane.id = @lane::int;

-- name: read_of_tenant
-- Index: lane_key (tenant, …); tenant_pkey.
{lanes}
 WHERE lane.tenant = @tenant::int;

-- name: lock_tenant
-- Whoever makes a lane of the tenant does so one after the other: lanes are counted, and made seldom.
SELECT name, shard, spread
  FROM tenant
 WHERE id = @tenant::int
   FOR NO KEY UPDATE;

-- name: count
-- The lanes of a tenant: homes, gates, and the gates of one part.
-- Index: lane_key (tenant, …).
SELECT count(*) FILTER (WHERE gate = '') AS homes,
       count(*) FILTER (WHERE gate <> '') AS gates,
       count(*) FILTER (WHERE gate <> '' AND part = @part::int) AS gates_of_part
  FROM lane
 WHERE tenant = @tenant::int;

-- name: make
INSERT INTO lane (id, tenant, queue, class, kind, requires, gate, part)
VALUES (nextval('lane_index') * 256 + @shard::int, @tenant::int, @queue::text, @class::int, @kind::int,
        @requires::text[], @gate::text, @part::int)
    ON CONFLICT DO NOTHING;

-- name: give
-- A gate's lane that is empty, for another gate of the same part, whose rows are fed with it; no task's id names it.
-- Index: lane_key (tenant, …), and due_pkey (lane, wake) for each gate.
UPDATE lane
   SET queue = @queue::text, class = @class::int, kind = @kind::int, requires = @requires::text[], gate = @gate::text
 WHERE id = (SELECT id
               FROM lane
              WHERE tenant = @tenant::int
                AND part = @part::int
                AND gate <> ''
                AND NOT EXISTS (SELECT FROM due WHERE due.lane = lane.id)
              LIMIT 1)
RETURNING id;
