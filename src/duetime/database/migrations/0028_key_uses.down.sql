ALTER TABLE api_key DROP COLUMN watched_since;
DROP TABLE api_key_use;
