-- name: ask
-- The time of the server, and where it stands in the history of its writes.
-- Time:  clock_timestamp(); the log up to `written` is on disk, so a restart does not take it back.
-- Right: every role may call these functions, unless somebody has revoked it.
-- A server that replays another's log has neither timeline nor log of its own.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us,
       control.system_identifier AS system,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::bigint END AS timeline,
       CASE WHEN NOT pg_is_in_recovery()
            THEN pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END AS written
  FROM pg_control_system() AS control;

-- name: ask_time
-- The time alone, for a role that may not ask for more.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us;
