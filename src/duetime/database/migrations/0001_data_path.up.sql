-- The data path: a task is asked for (task), waits (due), is with a holder
-- (claim), and what happened is written down (attempt); beside them what is
-- kept back (held) and what is given up (dead).  No foreign keys, triggers or
-- counter rows.

-- A team.  `signing_secret` signs the calls to its HTTP targets.
CREATE TABLE tenant (
    id             int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text        NOT NULL UNIQUE,
    weight         int         NOT NULL DEFAULT 1,
    shard          smallint    NOT NULL,
    signing_secret bytea       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Bearer keys, hashed: a key is shown once, when it is made.
CREATE TABLE api_key (
    id         int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     int         NOT NULL,
    hash       bytea       NOT NULL UNIQUE,
    hint       text        NOT NULL,
    role       text        NOT NULL DEFAULT 'admin',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);

-- One (tenant, queue, class, kind) and what its workers must have; the number
-- is index * 256 + shard, and stands in every id.  Numbers below 256 are the
-- shards' own lanes.
CREATE SEQUENCE lane_index START 1 MAXVALUE 8388607;
CREATE TABLE lane (
    id       int      PRIMARY KEY,
    tenant   int      NOT NULL,
    queue    text     NOT NULL,
    class    smallint NOT NULL,
    kind     smallint NOT NULL,
    requires text[]   NOT NULL DEFAULT '{}',
    UNIQUE (tenant, queue, class, kind, requires)
);

-- What a feeder knows of a lane: every row up to `drained` has been taken.
CREATE TABLE lane_hint (
    lane    int  PRIMARY KEY,
    drained uuid NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE task (
    lane       int         NOT NULL,
    id         uuid        NOT NULL,
    type       text        NOT NULL,
    payload    bytea       NOT NULL,
    options    bytea,
    labels     jsonb,
    run_at     timestamptz NOT NULL,
    expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, id)
) PARTITION BY RANGE (id);
-- To find what expired while nobody came for it.
CREATE INDEX task_expires ON task (expires_at, id) WHERE expires_at IS NOT NULL;

CREATE TABLE due (
    lane     int      NOT NULL,
    wake     uuid     NOT NULL,
    task     uuid     NOT NULL,
    number   int      NOT NULL,
    failures smallint NOT NULL DEFAULT 0,
    crashes  smallint NOT NULL DEFAULT 0,
    releases smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, wake)
) PARTITION BY RANGE (wake);
-- A first wake is the task's id, so only later ones need an index by task.
CREATE INDEX due_task ON due (lane, task) WHERE wake <> task;

CREATE TABLE claim (
    lane      int         NOT NULL,
    task      uuid        NOT NULL,
    number    int         NOT NULL,
    failures  smallint    NOT NULL,
    crashes   smallint    NOT NULL,
    releases  smallint    NOT NULL,
    holder    bigint      NOT NULL,
    picked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, task)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claim_holder ON claim (holder);

CREATE TABLE attempt (
    lane         int         NOT NULL,
    task         uuid        NOT NULL,
    number       int         NOT NULL,
    outcome      smallint    NOT NULL,
    final        boolean     NOT NULL,
    holder       bigint,
    picked_at    timestamptz,
    started_at   timestamptz,
    completed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- JSON: error, response, status, reason; the result as the holder sent it.
    detail       bytea,
    result       bytea,
    PRIMARY KEY (lane, task, number)
) PARTITION BY RANGE (task);

CREATE TABLE held (
    lane       int         NOT NULL,
    task       uuid        NOT NULL,
    wake       uuid        NOT NULL,
    number     int         NOT NULL,
    failures   smallint    NOT NULL,
    crashes    smallint    NOT NULL,
    releases   smallint    NOT NULL,
    reason     smallint    NOT NULL,  -- 1 paused, 2 blocked
    held_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, task)
);

CREATE TABLE dead (
    lane    int         NOT NULL,
    task    uuid        NOT NULL,
    number  int         NOT NULL,
    reason  text        NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, task)
);
CREATE INDEX dead_died_at ON dead (died_at);

-- One process that runs attempts, from its start to its end.  `beats` rises with
-- each beat; `running` are the tasks it said it had started, at its last beat, and
-- `running_numbers` which attempts of them: a later one of the same task may wait.
CREATE TABLE holder (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     int         NOT NULL,  -- 0: an executor of ours
    name       text        NOT NULL,
    beats      bigint      NOT NULL DEFAULT 0,
    running    uuid[]      NOT NULL DEFAULT '{}',
    running_numbers int[]  NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beaten_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX holder_name ON holder (tenant, name) WHERE ended_at IS NULL;
CREATE INDEX holder_ended ON holder (ended_at) WHERE ended_at IS NOT NULL;

-- Callers' idempotency keys: one task for each.
CREATE TABLE idempotency_key (
    tenant      int         NOT NULL,
    key         text        NOT NULL,
    task        uuid        NOT NULL,
    fingerprint bytea       NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_key_expires ON idempotency_key (expires_at);

-- Requests that were answered: a client that repeats one gets the same tasks.
-- `id` is a UUIDv7, so its own time tells the partition, and an hour later it is gone.
CREATE TABLE request_key (
    id          uuid  NOT NULL,
    tenant      int   NOT NULL,
    fingerprint bytea NOT NULL,
    tasks       bytea NOT NULL,
    PRIMARY KEY (id, tenant)
) PARTITION BY RANGE (id);

-- A wake in SQL, for moves whose time is the database's own.
CREATE FUNCTION mint_wake(due_ms bigint, lane int, salt bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(due_ms), 12, '0')
            || '8' || lpad(to_hex((salt >> 30) & 4095), 3, '0')
            || to_hex(8 | ((salt >> 28) & 3))
            || lpad(to_hex(salt & 268435455), 7, '0')
            || lpad(to_hex(lane), 8, '0'))::uuid
$$;

-- 42 random bits, to count on from.
CREATE FUNCTION random_salt() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (random() * 2199023255551)::bigint
$$;

-- The due time inside a wake or id, in milliseconds.
CREATE FUNCTION due_ms(wake uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || left(replace(wake::text, '-', ''), 12))::bit(48)::bigint
$$;

CREATE FUNCTION to_ms(instant timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT floor(extract(epoch FROM instant) * 1000)::bigint
$$;
