-- What migrations need around them: the table of those that were applied, the settings of our role, a lock.

-- name: make_ledger
-- Copies: creates only what does not exist.
CREATE SCHEMA IF NOT EXISTS duetime;
CREATE TABLE IF NOT EXISTS duetime.migration (
    number     int         PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: drop_ledger
-- Sent as one simple query.
DROP TABLE IF EXISTS duetime.migration;
DROP SCHEMA IF EXISTS duetime;

-- name: has_ledger
SELECT to_regclass('duetime.migration') IS NOT NULL;

-- name: read_ledger
SELECT number, name, checksum
  FROM duetime.migration;

-- name: record
-- Copies: its session keeps the lock of migrations until it has ended.
INSERT INTO duetime.migration (number, name, checksum)
VALUES (@number::int, @name::text, @checksum::text);

-- name: strike_out
-- Copies: as record.
DELETE FROM duetime.migration
 WHERE number = @number::int;

-- name: find_tables
SET search_path = duetime, public;

-- name: find_tables_for_now
SET LOCAL search_path = duetime, public;

-- name: read_database
SELECT current_database();

-- name: read_settings
-- What this role has in this database.
SELECT setconfig
  FROM pg_db_role_setting
 WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user);

-- name: set_for_now
SELECT set_config(@name::text, @value::text, true);

-- name: keep_setting
-- Gives every later session of this role in this database what this transaction has.
ALTER ROLE CURRENT_USER IN DATABASE :"database" SET :"name" FROM CURRENT;

-- name: drop_setting
ALTER ROLE CURRENT_USER IN DATABASE :"database" RESET :"name";

-- name: try_lock
-- Whether this session may migrate now.
-- Locks: migrating, until unlock or the end of the session.
SELECT pg_try_advisory_lock(@key::bigint);

-- name: unlock
SELECT pg_advisory_unlock(@key::bigint);
