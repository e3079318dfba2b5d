-- A tenant that is suspended runs nothing, and loses nothing.
ALTER TABLE tenant
    ADD COLUMN state      text        NOT NULL DEFAULT 'active',
    ADD COLUMN updated_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- What a key is confined to: task types and queues as patterns (none: all), and a time.
ALTER TABLE api_key
    ADD COLUMN name       text        NOT NULL DEFAULT '',
    ADD COLUMN types      text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN queues     text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN expires_at timestamptz;

-- What was done by hand to tenants and keys: who, when, what before and after.
CREATE TABLE audit (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The tenant that it was done to.
    tenant  int         NOT NULL,
    -- The key that asked for it; NULL: the command line on the server itself.
    key     int,
    action  text        NOT NULL,
    subject text        NOT NULL,
    before  jsonb,
    after   jsonb
);
CREATE INDEX audit_tenant ON audit (tenant, id);
