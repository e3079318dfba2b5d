-- Breakers that somebody holds open or closed; all others decide by themselves, in memory.
CREATE TABLE breaker (
    tenant     int         NOT NULL,
    -- host:port, in lower case.
    host       text        NOT NULL,
    forced     text        NOT NULL CHECK (forced IN ('open', 'closed')),
    note       text        NOT NULL DEFAULT '',
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, host)
);
