-- name: wait_for_standbys
-- A commit behind all that can be seen: it waits for the synchronous standbys, and so for what they still lack of that.
-- Nothing is written where there are none.
-- Copies: sends a message that has no reader.
SELECT pg_logical_emit_message(true, 'duetime', '')
 WHERE current_setting('synchronous_standby_names') <> '';
