-- name: try_duty
-- Whether this session has the duty now; not, if another one has it.
-- Locks: the duty, until end_duty or the end of the session.
SELECT pg_try_advisory_lock(hashtext('duetime ' || @duty::text)) AS got;

-- name: end_duty
SELECT pg_advisory_unlock(hashtext('duetime ' || @duty::text));
