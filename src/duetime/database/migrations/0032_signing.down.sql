ALTER TABLE tenant DROP COLUMN signing_request;
ALTER TABLE tenant DROP COLUMN signing_version;
ALTER TABLE tenant DROP COLUMN former_secret_until;
ALTER TABLE tenant DROP COLUMN former_secret;
