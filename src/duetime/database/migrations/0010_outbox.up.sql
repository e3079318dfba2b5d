-- Tasks that producers write in transactions of their own, until a node has made tasks of them.
-- Sorted by transaction, so that a look can skip the ones that an earlier look had seen the end of.
CREATE TABLE outbox (
    transaction bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    tenant      int         NOT NULL,
    -- The JSON of a task, as the body of POST /v1/tasks.
    body        bytea       NOT NULL,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (transaction, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- What could not become a task, and why; kept as long as dead letters.
CREATE TABLE outbox_refused (
    tenant     int         NOT NULL,
    id         bigint      NOT NULL,
    body       bytea       NOT NULL,
    written_at timestamptz NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    code       text        NOT NULL,
    detail     text        NOT NULL,
    -- A JSON array of paths and messages.
    errors     bytea       NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX outbox_refused_at ON outbox_refused (refused_at);

-- Write a task in the caller's transaction; gives its number in the outbox.  It runs with its owner's rights:
-- a producer's role needs this function and nothing of the tables.  `json` keeps what it is given as it is.
CREATE FUNCTION enqueue(tenant text, body json) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = duetime, pg_temp
    AS $$
DECLARE
    owner   int;
    written bigint;
BEGIN
    IF json_typeof(body) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'a task is a JSON object such as {"type": "email.send"}, not %', coalesce(json_typeof(body), 'NULL')
              USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(body::text) > 262144 THEN
        RAISE EXCEPTION 'a task has at most 262144 bytes, not %', octet_length(body::text)
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Keep bigger things elsewhere and send a link.';
    END IF;
    SELECT known.id INTO owner FROM tenant AS known WHERE known.name = enqueue.tenant;
    IF owner IS NULL THEN
        RAISE EXCEPTION 'there is no tenant %', coalesce(quote_literal(enqueue.tenant), 'NULL')
              USING ERRCODE = 'invalid_parameter_value', HINT = 'An admin makes one: duetime tenants put NAME.';
    END IF;
    INSERT INTO outbox (tenant, body) VALUES (owner, convert_to(enqueue.body::text, 'UTF8')) RETURNING id INTO written;
    RETURN written;
END
$$;
REVOKE ALL ON FUNCTION enqueue(text, json) FROM PUBLIC;
