ALTER TABLE holder DROP COLUMN running_us;
