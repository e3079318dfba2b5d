-- Limits that a tenant sets for its queues (scope 1) and for the keys that tasks name (scope 3, a name or a pattern).
CREATE TABLE limit_rule (
    tenant     int         NOT NULL,
    scope      smallint    NOT NULL,
    name       text        NOT NULL,
    -- max_running, rate, burst, strict as JSON; an empty object where nothing is limited.
    limits     bytea       NOT NULL,
    -- Nothing of a queue that is paused starts.
    state      text        NOT NULL DEFAULT 'active',
    version    int         NOT NULL DEFAULT 1,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, scope, name)
);
