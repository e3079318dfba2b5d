ALTER TABLE holder DROP COLUMN signed_off;
