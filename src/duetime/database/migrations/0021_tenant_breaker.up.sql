-- Tenants that are stopped because nearly all of their attempts fail, and those that resume; a tenant without a row is not.
CREATE TABLE tenant_breaker (
    tenant   int         PRIMARY KEY REFERENCES tenant (id),
    state    text        NOT NULL CHECK (state IN ('open', 'closing')),
    -- When it opened, or began to resume.
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- While it is open: when the next probe may start; whoever moves it on lets one start.
    probe_at timestamptz NOT NULL,
    reason   text        NOT NULL,
    attempts bigint      NOT NULL,
    failures bigint      NOT NULL
);
