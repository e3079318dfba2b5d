-- One row for each change that a node makes in several messages, written in the same transaction: a node that did not
-- hear whether the transaction was committed looks for it.  An id begins with the time of its making.
CREATE TABLE operation (
    id          uuid    PRIMARY KEY,
    -- Whoever looked for it found nothing: the change was not made, and never will be.
    is_given_up boolean NOT NULL
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
