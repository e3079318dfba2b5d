-- Vacuum gives the empty end of a table back to the disk, and nobody can use the table meanwhile; after a burst
-- every claim waited for it.  These fill up again: what is empty is used anew.
ALTER TABLE claim SET (vacuum_truncate = false);
ALTER TABLE outbox SET (vacuum_truncate = false);
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'due'::regclass LOOP
        EXECUTE format('ALTER TABLE %s SET (vacuum_truncate = false)', part);
    END LOOP;
END
$$;
