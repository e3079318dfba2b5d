-- Why a backfill makes no tasks now.
ALTER TABLE backfill ADD COLUMN waits_for text;
