-- After a rotation the former secret signs as well for a while.  `signing_version` counts the rotations, and
-- `signing_request` names the last one, so that a request that is repeated does not rotate twice.
ALTER TABLE tenant ADD COLUMN former_secret bytea;
ALTER TABLE tenant ADD COLUMN former_secret_until timestamptz;
ALTER TABLE tenant ADD COLUMN signing_version int NOT NULL DEFAULT 0;
ALTER TABLE tenant ADD COLUMN signing_request uuid;
