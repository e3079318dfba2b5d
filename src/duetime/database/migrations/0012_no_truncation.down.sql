ALTER TABLE claim RESET (vacuum_truncate);
ALTER TABLE outbox RESET (vacuum_truncate);
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'due'::regclass LOOP
        EXECUTE format('ALTER TABLE %s RESET (vacuum_truncate)', part);
    END LOOP;
END
$$;
