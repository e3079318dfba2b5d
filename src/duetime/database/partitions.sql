-- name: read_bounds
-- The partitions of a table; none if there is no such table.
SELECT child.relname AS name, pg_get_expr(child.relpartbound, child.oid) AS bound
  FROM pg_inherits
  JOIN pg_class AS child
    ON child.oid = inhrelid
 WHERE inhparent = to_regclass(@table::text);

-- name: lock
-- Lets one session at a time make partitions.  Sent as one simple query.
-- Locks: the making of partitions, until the commit.
-- Time:  no lock is waited for longer than this.
SET LOCAL lock_timeout = '500ms';
SELECT pg_advisory_xact_lock(hashtext('duetime partitions'));

-- name: create_busy
-- For rows that come and go: vacuum by number, not by share of the table, and without locking it to make it shorter.
CREATE TABLE :"partition" (LIKE :"table" INCLUDING ALL)
  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false);

-- name: create_growing
-- For rows that only come, by millions an hour under load: they are counted anew when half as many have come as there
-- were, not a tenth.  Our statements do not depend on it, and it takes a busy machine a good part of a second.
CREATE TABLE :"partition" (LIKE :"table" INCLUDING ALL)
  WITH (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 100000);

-- name: attach
-- Locks: the table against changes of its partitions; rows can be read and written.
ALTER TABLE :"table"
      ATTACH PARTITION :"partition" FOR VALUES FROM (:'since') TO (:'until');

-- name: attach_oldest
-- Locks: as attach.
ALTER TABLE :"table"
      ATTACH PARTITION :"partition" FOR VALUES FROM (MINVALUE) TO (:'until');
