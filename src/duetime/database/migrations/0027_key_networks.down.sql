ALTER TABLE api_key DROP COLUMN allowed_ips;
