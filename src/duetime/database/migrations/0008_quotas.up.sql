-- What a tenant may submit, keep waiting and run; NULL and absent: as its tier says, else without a limit.
CREATE TABLE tier (
    name       text        PRIMARY KEY,
    weight     int,
    quotas     jsonb       NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE tenant
    ALTER COLUMN weight DROP NOT NULL,
    ALTER COLUMN weight DROP DEFAULT,
    ADD COLUMN tier   text     REFERENCES tier (name),
    ADD COLUMN spread smallint NOT NULL DEFAULT 1,
    ADD COLUMN quotas jsonb    NOT NULL DEFAULT '{}',
    -- The number of the last change to what nodes must know of it; 0: nothing but defaults, ever.
    ADD COLUMN change bigint   NOT NULL DEFAULT 0;
UPDATE tenant SET weight = NULL WHERE weight = 1;
UPDATE tenant SET change = 1 WHERE weight IS NOT NULL OR state <> 'active';
CREATE INDEX tenant_change ON tenant (change) WHERE change > 0;
CREATE INDEX tenant_tier ON tenant (tier) WHERE tier IS NOT NULL;

-- What is done to a tier is done to no tenant.
ALTER TABLE audit ALTER COLUMN tenant DROP NOT NULL;

-- Token buckets that nodes share.  What a crash empties begins again with a second's worth.
CREATE UNLOGGED TABLE budget (
    name    text             PRIMARY KEY,
    tokens  double precision NOT NULL,
    at      timestamptz      NOT NULL,
    -- Of the last call: what it asked for, and what it got.
    rate    double precision NOT NULL,
    burst   double precision NOT NULL,
    wanted  double precision NOT NULL,
    granted double precision NOT NULL
) WITH (fillfactor = 50);
