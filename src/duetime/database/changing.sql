-- name: begin
-- Open a transaction for one change and write its id down.  Sent as one simple query, with the id in the text.
-- Locks: the id, until the transaction has ended.
-- Time:  a transaction whose node is gone before COMMIT keeps its locks for no longer than this.
-- Copies: opens a transaction that is never committed, or fails because the id was given up.
BEGIN;
SET LOCAL idle_in_transaction_session_timeout = '5s';
INSERT INTO operation (id, is_given_up) VALUES (:'id', false);

-- name: commit
-- A message of its own, sent after the answers of all others.
COMMIT;

-- name: rollback
ROLLBACK;

-- name: find_or_give_up
-- Whether the change of this id was made; if it was not, it never will be.  Waits until its transaction has ended.
-- It writes also where it finds the row, so that its commit waits for a synchronous standby, as that of the change does.
-- Locks: the id.
-- Copies: the existing row stays as it is.
INSERT INTO operation (id, is_given_up)
VALUES (@id::uuid, true)
    ON CONFLICT (id) DO UPDATE
   SET is_given_up = operation.is_given_up
RETURNING is_given_up;

-- name: retire_operations
-- Drop the ids that nobody looks for any more.
-- Copies: names ids; the same rows are too old at any later time.
DELETE FROM operation
 WHERE id < @before::uuid;
