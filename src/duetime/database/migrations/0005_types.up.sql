-- Task types that a tenant has registered: the schema that their payloads must match.
CREATE TABLE task_type (
    tenant     int         NOT NULL,
    name       text        NOT NULL,
    version    int         NOT NULL DEFAULT 1,
    -- A JSON Schema, as it was given.
    schema     bytea       NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, name)
);
-- Rises with every change, so that a node sees by one row whether it knows them all.
CREATE SEQUENCE task_type_change;
