-- Schedules: the programs that produce tasks.  `schedule` is what a user wrote, with the
-- template of its tasks ready to be copied; it changes only when a user changes it.
CREATE TABLE schedule (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        int         NOT NULL,
    name          text        NOT NULL,
    version       int         NOT NULL DEFAULT 1,
    -- JSON: recurrence, policies and the template as it is shown.
    definition    bytea       NOT NULL,
    -- Named calendars that the recurrence leaves out.
    calendars     text[]      NOT NULL DEFAULT '{}',
    task_lane     int         NOT NULL,
    task_type     text        NOT NULL,
    task_payload  bytea       NOT NULL,
    task_options  bytea,
    task_labels   jsonb,
    expires_after float8,
    origin        text        NOT NULL,
    source        text        NOT NULL DEFAULT '',
    is_paused     boolean     NOT NULL DEFAULT false,
    note          text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, name)
);

-- What firing changes.  `wake` is the schedule's one row in `due`, in the lane of its shard
-- (lanes 0 to 255 are the shards' schedule lanes); NULL: it is paused or has ended.  Whoever
-- moves a schedule locks this row and finds the wake that it expects.
CREATE TABLE schedule_state (
    schedule       bigint NOT NULL PRIMARY KEY,
    lane           int    NOT NULL,
    wake           uuid,
    -- The nominal time of the next fire; NULL: it follows the end of the run under way.
    next_ms        bigint,
    fired          bigint NOT NULL DEFAULT 0,
    skipped        bigint NOT NULL DEFAULT 0,
    missed         bigint NOT NULL DEFAULT 0,
    buffered       bigint NOT NULL DEFAULT 0,
    -- Tasks that were fired and may be open: 16 bytes each.
    recent         bytea  NOT NULL DEFAULT '',
    -- Nominal times that wait for the run before them: 8 bytes each.
    buffer         bytea  NOT NULL DEFAULT '',
    last_skip_ms   bigint,
    last_skip_at   timestamptz,
    last_skip      text
) WITH (fillfactor = 50);

-- One row for each time that a schedule came to: what became of it.  `moment` begins with
-- the nominal time in ms; behind it stands the cause (0: the schedule itself), so that a
-- time is fired once for each cause.
CREATE TABLE fire (
    schedule bigint      NOT NULL,
    moment   uuid        NOT NULL,
    task     uuid,
    outcome  smallint    NOT NULL,
    reason   text,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule, moment)
) PARTITION BY RANGE (moment);

CREATE TABLE backfill (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule   bigint      NOT NULL,
    tenant     int         NOT NULL,
    lane       int         NOT NULL,
    from_ms    bigint      NOT NULL,
    to_ms      bigint      NOT NULL,
    rate       float8      NOT NULL,
    -- The nominal time up to which it is done.
    reached_ms bigint      NOT NULL,
    created    bigint      NOT NULL DEFAULT 0,
    state      text        NOT NULL DEFAULT 'running',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz,
    -- The call that made it: repeated, it makes no second one.
    request    uuid,
    UNIQUE (schedule, request)
);
CREATE INDEX backfill_schedule ON backfill (schedule, id);
CREATE INDEX backfill_running ON backfill (lane) WHERE state = 'running';

-- Times that many schedules leave out.
CREATE TABLE calendar (
    tenant     int         NOT NULL,
    name       text        NOT NULL,
    version    int         NOT NULL DEFAULT 1,
    entries    bytea       NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, name)
);
