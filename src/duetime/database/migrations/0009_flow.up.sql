-- A type may have rules beside its schema, and need not have one.
ALTER TABLE task_type
    ALTER COLUMN schema DROP NOT NULL,
    -- Defaults, limits and flow control as JSON; NULL: none.
    ADD COLUMN rules bytea;

-- Which task a key of flow control stands for: the one that is unique, or the last one of a debounce.
-- A hint that is behind heals: whoever comes next finds the successor by its idempotency key.
CREATE TABLE flow_key (
    tenant     int         NOT NULL,
    -- 1 unique, 2 debounce
    kind       smallint    NOT NULL,
    -- A hash of type and key.
    key        bytea       NOT NULL,
    task       uuid        NOT NULL,
    -- When the first of those was submitted that this one replaces, or it itself.
    first_at   timestamptz NOT NULL,
    -- Unique also against tasks that are over.
    holds_over boolean     NOT NULL DEFAULT false,
    -- When upkeep looks whether it can go.
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, kind, key)
);
CREATE INDEX flow_key_expires ON flow_key (expires_at);

-- How far ahead of its rate a type is, for each key that its submissions are counted by.
CREATE TABLE submit_rate (
    tenant  int         NOT NULL,
    -- A hash of type and key.
    key     bytea       NOT NULL,
    -- When everything that was let in would have come in at an even pace; in the past: nothing is owed.
    even_at timestamptz NOT NULL,
    -- How many of the last that asked were let in.
    granted int         NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX submit_rate_even ON submit_rate (even_at);
