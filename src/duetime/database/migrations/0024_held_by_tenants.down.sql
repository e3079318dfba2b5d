DROP INDEX api_key_tenant;
ALTER TABLE tenant DROP COLUMN schedules;
