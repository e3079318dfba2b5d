ALTER TABLE holder DROP COLUMN max_silence;
ALTER TABLE limit_rule DROP COLUMN max_silence;
