-- The addresses and networks from which a key may be used; none: from everywhere.
ALTER TABLE api_key ADD COLUMN allowed_ips text[] NOT NULL DEFAULT '{}';
