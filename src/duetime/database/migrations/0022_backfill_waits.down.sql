ALTER TABLE backfill DROP COLUMN waits_for;
