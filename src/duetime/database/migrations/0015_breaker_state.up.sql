-- What the breakers of target hosts have found out: written when it changes, read by the node that calls them next.
CREATE TABLE breaker_state (
    tenant    int         NOT NULL,
    -- host:port, in lower case.
    host      text        NOT NULL,
    -- `BreakerMemory`; times are milliseconds of the database's clock.
    memory    jsonb       NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, host)
);
