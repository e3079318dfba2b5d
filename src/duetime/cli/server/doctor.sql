-- What is asked of a database before it is known to have our schema, by any role: names have the schema in them.

-- name: read_version
SELECT current_setting('server_version') AS version;

-- name: read_settings
-- What a session has, wherever it has it from; NULL: there is no such setting.
SELECT name, current_setting(name, true) AS value
  FROM unnest(@names::text[]) AS asked (name);

-- name: read_clock
-- Time:  the database's clock, in seconds.
SELECT extract(epoch FROM clock_timestamp()) AS now;

-- name: read_migration
SELECT max(number) AS number
  FROM duetime.migration;

-- name: read_nodes
-- Every node, and whether it was heard @within.
-- Time:  the database's clock alone.
SELECT clock_timestamp() - beaten_at < @within::interval AS is_heard
  FROM duetime.node;
