-- Rows of the outbox whose tenants have no room for another task: out of the way of everybody else's.
CREATE TABLE outbox_aside (
    tenant int NOT NULL,
    id bigint NOT NULL,
    body bytea NOT NULL,
    written_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);
