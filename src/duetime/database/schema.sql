CREATE SCHEMA duetime;

CREATE FUNCTION duetime.due_ms(wake uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT ('x' || left(replace(wake::text, '-', ''), 12))::bit(48)::bigint
$$;

CREATE FUNCTION duetime.enqueue(tenant text, body json) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'duetime', 'pg_temp'
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

CREATE FUNCTION duetime.mint_wake(due_ms bigint, lane integer, salt bigint) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT (lpad(to_hex(due_ms), 12, '0')
            || '8' || lpad(to_hex((salt >> 30) & 4095), 3, '0')
            || to_hex(8 | ((salt >> 28) & 3))
            || lpad(to_hex(salt & 268435455), 7, '0')
            || lpad(to_hex(lane), 8, '0'))::uuid
$$;

CREATE FUNCTION duetime.place_at(at_ms bigint, task uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT (lpad(to_hex(at_ms), 12, '0') || right(replace(task::text, '-', ''), 20))::uuid
$$;

CREATE FUNCTION duetime.random_salt() RETURNS bigint
    LANGUAGE sql PARALLEL SAFE
    AS $$
    SELECT (random() * 2199023255551)::bigint
$$;

CREATE FUNCTION duetime.to_ms(instant timestamp with time zone) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT floor(extract(epoch FROM instant) * 1000)::bigint
$$;

CREATE TABLE duetime.api_key (
    id integer NOT NULL,
    tenant integer NOT NULL,
    hash bytea NOT NULL,
    hint text NOT NULL,
    role text DEFAULT 'admin'::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    revoked_at timestamp with time zone,
    name text DEFAULT ''::text NOT NULL,
    types text[] DEFAULT '{}'::text[] NOT NULL,
    queues text[] DEFAULT '{}'::text[] NOT NULL,
    expires_at timestamp with time zone,
    family integer,
    allowed_ips text[] DEFAULT '{}'::text[] NOT NULL,
    watched_since timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE duetime.api_key ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.api_key_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.api_key_use (
    key integer NOT NULL,
    used_at timestamp with time zone NOT NULL,
    used_from text NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE duetime.attempt (
    lane integer NOT NULL,
    task uuid NOT NULL,
    number integer NOT NULL,
    outcome smallint NOT NULL,
    final boolean NOT NULL,
    holder bigint,
    picked_at timestamp with time zone,
    started_at timestamp with time zone,
    completed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    detail bytea,
    result bytea
)
PARTITION BY RANGE (task);

CREATE TABLE duetime.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tenant integer,
    key integer,
    action text NOT NULL,
    subject text NOT NULL,
    before jsonb,
    after jsonb
);

ALTER TABLE duetime.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.backfill (
    id bigint NOT NULL,
    schedule bigint NOT NULL,
    tenant integer NOT NULL,
    lane integer NOT NULL,
    from_ms bigint NOT NULL,
    to_ms bigint NOT NULL,
    rate double precision NOT NULL,
    reached_ms bigint NOT NULL,
    created bigint DEFAULT 0 NOT NULL,
    state text DEFAULT 'running'::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    request uuid,
    waits_for text
);

ALTER TABLE duetime.backfill ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.backfill_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.breaker (
    tenant integer NOT NULL,
    host text NOT NULL,
    forced text NOT NULL,
    note text DEFAULT ''::text NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT breaker_forced_check CHECK ((forced = ANY (ARRAY['open'::text, 'closed'::text])))
);

CREATE TABLE duetime.breaker_state (
    tenant integer NOT NULL,
    host text NOT NULL,
    memory jsonb NOT NULL,
    stored_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE UNLOGGED TABLE duetime.budget (
    name text NOT NULL,
    tokens double precision NOT NULL,
    at timestamp with time zone NOT NULL,
    rate double precision NOT NULL,
    burst double precision NOT NULL,
    wanted double precision NOT NULL,
    granted double precision NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE duetime.calendar (
    tenant integer NOT NULL,
    name text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    entries bytea NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE duetime.claim (
    lane integer NOT NULL,
    task uuid NOT NULL,
    number integer NOT NULL,
    failures smallint NOT NULL,
    crashes smallint NOT NULL,
    releases smallint NOT NULL,
    holder bigint NOT NULL,
    picked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

CREATE TABLE duetime.dead (
    lane integer NOT NULL,
    task uuid NOT NULL,
    number integer NOT NULL,
    reason text NOT NULL,
    died_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE duetime.due (
    lane integer NOT NULL,
    wake uuid NOT NULL,
    task uuid NOT NULL,
    number integer NOT NULL,
    failures smallint DEFAULT 0 NOT NULL,
    crashes smallint DEFAULT 0 NOT NULL,
    releases smallint DEFAULT 0 NOT NULL,
    home integer
)
PARTITION BY RANGE (wake);

CREATE TABLE duetime.fire (
    schedule bigint NOT NULL,
    moment uuid NOT NULL,
    task uuid,
    outcome smallint NOT NULL,
    reason text,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
PARTITION BY RANGE (moment);

CREATE TABLE duetime.flow_key (
    tenant integer NOT NULL,
    kind smallint NOT NULL,
    key bytea NOT NULL,
    task uuid NOT NULL,
    first_at timestamp with time zone NOT NULL,
    holds_over boolean DEFAULT false NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE duetime.held (
    lane integer NOT NULL,
    task uuid NOT NULL,
    wake uuid NOT NULL,
    number integer NOT NULL,
    failures smallint NOT NULL,
    crashes smallint NOT NULL,
    releases smallint NOT NULL,
    reason smallint NOT NULL,
    held_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE duetime.holder (
    id bigint NOT NULL,
    tenant integer NOT NULL,
    name text NOT NULL,
    beats bigint DEFAULT 0 NOT NULL,
    running uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    running_numbers integer[] DEFAULT '{}'::integer[] NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    beaten_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    signed_off boolean DEFAULT false NOT NULL,
    running_us bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    max_silence double precision,
    owner integer
)
WITH (fillfactor='50');

ALTER TABLE duetime.holder ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.holder_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.idempotency_key (
    tenant integer NOT NULL,
    key text NOT NULL,
    task uuid NOT NULL,
    fingerprint bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    ttl_ended_at timestamp with time zone
);

CREATE TABLE duetime.lane (
    id integer NOT NULL,
    tenant integer NOT NULL,
    queue text NOT NULL,
    class smallint NOT NULL,
    kind smallint NOT NULL,
    requires text[] DEFAULT '{}'::text[] NOT NULL,
    gate text DEFAULT ''::text NOT NULL,
    part smallint DEFAULT 0 NOT NULL
);

CREATE TABLE duetime.lane_hint (
    lane integer NOT NULL,
    drained uuid NOT NULL
)
WITH (fillfactor='50');

CREATE SEQUENCE duetime.lane_index
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    MAXVALUE 8388607
    CACHE 1;

CREATE TABLE duetime.limit_rule (
    tenant integer NOT NULL,
    scope smallint NOT NULL,
    name text NOT NULL,
    limits bytea NOT NULL,
    state text DEFAULT 'active'::text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    max_silence double precision
);

CREATE TABLE duetime.limit_slot (
    tenant integer NOT NULL,
    name text NOT NULL,
    slot integer NOT NULL,
    lane integer NOT NULL,
    task uuid NOT NULL,
    number integer NOT NULL,
    taken_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE duetime.listed (
    lane integer NOT NULL,
    task uuid NOT NULL,
    place uuid NOT NULL
);

CREATE TABLE duetime.migration (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE duetime.node (
    cluster text NOT NULL,
    name text NOT NULL,
    incarnation bigint NOT NULL,
    address text NOT NULL,
    beats bigint DEFAULT 0 NOT NULL,
    joined_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    beaten_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE duetime.operation (
    id uuid NOT NULL,
    is_given_up boolean NOT NULL
)
WITH (autovacuum_vacuum_threshold='500', autovacuum_vacuum_scale_factor='0');

CREATE TABLE duetime.outbox (
    transaction bigint DEFAULT ((pg_current_xact_id())::text)::bigint NOT NULL,
    id bigint NOT NULL,
    tenant integer NOT NULL,
    body bytea NOT NULL,
    written_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

CREATE TABLE duetime.outbox_aside (
    tenant integer NOT NULL,
    id bigint NOT NULL,
    body bytea NOT NULL,
    written_at timestamp with time zone NOT NULL
);

ALTER TABLE duetime.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.outbox_refused (
    tenant integer NOT NULL,
    id bigint NOT NULL,
    body bytea NOT NULL,
    written_at timestamp with time zone NOT NULL,
    refused_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    code text NOT NULL,
    detail text NOT NULL,
    errors bytea NOT NULL
);

CREATE TABLE duetime.request_key (
    id uuid NOT NULL,
    tenant integer NOT NULL,
    fingerprint bytea NOT NULL,
    tasks bytea NOT NULL
)
PARTITION BY RANGE (id);

CREATE TABLE duetime.rescheduled (
    lane integer NOT NULL,
    task uuid NOT NULL,
    run_at timestamp with time zone NOT NULL
);

CREATE TABLE duetime.rule_change (
    kind text NOT NULL,
    change bigint DEFAULT 1 NOT NULL,
    named bigint DEFAULT 0 NOT NULL
);

CREATE TABLE duetime.schedule (
    id bigint NOT NULL,
    tenant integer NOT NULL,
    name text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    definition bytea NOT NULL,
    calendars text[] DEFAULT '{}'::text[] NOT NULL,
    task_lane integer NOT NULL,
    task_type text NOT NULL,
    task_payload bytea NOT NULL,
    task_options bytea,
    task_labels jsonb,
    expires_after double precision,
    origin text NOT NULL,
    source text DEFAULT ''::text NOT NULL,
    is_paused boolean DEFAULT false NOT NULL,
    note text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE duetime.schedule ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.schedule_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.schedule_state (
    schedule bigint NOT NULL,
    lane integer NOT NULL,
    wake uuid,
    next_ms bigint,
    fired bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    missed bigint DEFAULT 0 NOT NULL,
    buffered bigint DEFAULT 0 NOT NULL,
    recent bytea DEFAULT '\x'::bytea NOT NULL,
    buffer bytea DEFAULT '\x'::bytea NOT NULL,
    last_skip_ms bigint,
    last_skip_at timestamp with time zone,
    last_skip text
)
WITH (fillfactor='50');

CREATE TABLE duetime.submit_rate (
    tenant integer NOT NULL,
    key bytea NOT NULL,
    even_at timestamp with time zone NOT NULL,
    granted integer NOT NULL
);

CREATE TABLE duetime.task (
    lane integer NOT NULL,
    id uuid NOT NULL,
    type text NOT NULL,
    payload bytea NOT NULL,
    options bytea,
    labels jsonb,
    run_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
PARTITION BY RANGE (id);

CREATE TABLE duetime.task_type (
    tenant integer NOT NULL,
    name text NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    schema bytea,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    rules bytea,
    change bigint DEFAULT 0 NOT NULL,
    held_bytes bigint
);

CREATE TABLE duetime.tenant (
    id integer NOT NULL,
    name text NOT NULL,
    weight integer,
    shard smallint NOT NULL,
    signing_secret bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    state text DEFAULT 'active'::text NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tier text,
    spread smallint DEFAULT 1 NOT NULL,
    quotas jsonb DEFAULT '{}'::jsonb NOT NULL,
    change bigint DEFAULT 0 NOT NULL,
    schedules integer DEFAULT 0 NOT NULL,
    defaults boolean DEFAULT true NOT NULL,
    egress jsonb DEFAULT '{}'::jsonb NOT NULL,
    former_secret bytea,
    former_secret_until timestamp with time zone,
    signing_version integer DEFAULT 0 NOT NULL,
    signing_request uuid
);

CREATE TABLE duetime.tenant_breaker (
    tenant integer NOT NULL,
    state text NOT NULL,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    probe_at timestamp with time zone NOT NULL,
    reason text NOT NULL,
    attempts bigint NOT NULL,
    failures bigint NOT NULL,
    CONSTRAINT tenant_breaker_state_check CHECK ((state = ANY (ARRAY['open'::text, 'closing'::text])))
);

ALTER TABLE duetime.tenant ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duetime.tenant_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duetime.tenant_rule_change (
    kind text NOT NULL,
    tenant integer NOT NULL,
    change bigint NOT NULL
);

CREATE TABLE duetime.tier (
    name text NOT NULL,
    weight integer,
    quotas jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    egress jsonb DEFAULT '{}'::jsonb NOT NULL
);

CREATE TABLE duetime.write_proof (
    node text NOT NULL,
    written_at timestamp with time zone NOT NULL,
    filler bytea NOT NULL
)
WITH (autovacuum_vacuum_threshold='500', autovacuum_vacuum_scale_factor='0');
ALTER TABLE ONLY duetime.write_proof ALTER COLUMN filler SET STORAGE PLAIN;

ALTER TABLE ONLY duetime.api_key
    ADD CONSTRAINT api_key_hash_key UNIQUE (hash);

ALTER TABLE ONLY duetime.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.api_key_use
    ADD CONSTRAINT api_key_use_pkey PRIMARY KEY (key);

ALTER TABLE ONLY duetime.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (lane, task, number);

ALTER TABLE ONLY duetime.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.backfill
    ADD CONSTRAINT backfill_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.backfill
    ADD CONSTRAINT backfill_schedule_request_key UNIQUE (schedule, request);

ALTER TABLE ONLY duetime.breaker
    ADD CONSTRAINT breaker_pkey PRIMARY KEY (tenant, host);

ALTER TABLE ONLY duetime.breaker_state
    ADD CONSTRAINT breaker_state_pkey PRIMARY KEY (tenant, host);

ALTER TABLE ONLY duetime.budget
    ADD CONSTRAINT budget_pkey PRIMARY KEY (name);

ALTER TABLE ONLY duetime.calendar
    ADD CONSTRAINT calendar_pkey PRIMARY KEY (tenant, name);

ALTER TABLE ONLY duetime.claim
    ADD CONSTRAINT claim_pkey PRIMARY KEY (lane, task);

ALTER TABLE ONLY duetime.dead
    ADD CONSTRAINT dead_pkey PRIMARY KEY (lane, task);

ALTER TABLE ONLY duetime.due
    ADD CONSTRAINT due_pkey PRIMARY KEY (lane, wake);

ALTER TABLE ONLY duetime.fire
    ADD CONSTRAINT fire_pkey PRIMARY KEY (schedule, moment);

ALTER TABLE ONLY duetime.flow_key
    ADD CONSTRAINT flow_key_pkey PRIMARY KEY (tenant, kind, key);

ALTER TABLE ONLY duetime.held
    ADD CONSTRAINT held_pkey PRIMARY KEY (lane, task);

ALTER TABLE ONLY duetime.holder
    ADD CONSTRAINT holder_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.idempotency_key
    ADD CONSTRAINT idempotency_key_pkey PRIMARY KEY (tenant, key);

ALTER TABLE ONLY duetime.lane_hint
    ADD CONSTRAINT lane_hint_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY duetime.lane
    ADD CONSTRAINT lane_key UNIQUE (tenant, queue, class, kind, requires, gate, part);

ALTER TABLE ONLY duetime.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.limit_rule
    ADD CONSTRAINT limit_rule_pkey PRIMARY KEY (tenant, scope, name);

ALTER TABLE ONLY duetime.limit_slot
    ADD CONSTRAINT limit_slot_pkey PRIMARY KEY (tenant, name, slot);

ALTER TABLE ONLY duetime.listed
    ADD CONSTRAINT listed_pkey PRIMARY KEY (lane, task);

ALTER TABLE ONLY duetime.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);

ALTER TABLE ONLY duetime.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (cluster, name);

ALTER TABLE ONLY duetime.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.outbox_aside
    ADD CONSTRAINT outbox_aside_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duetime.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (transaction, id);

ALTER TABLE ONLY duetime.outbox_refused
    ADD CONSTRAINT outbox_refused_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duetime.request_key
    ADD CONSTRAINT request_key_pkey PRIMARY KEY (id, tenant);

ALTER TABLE ONLY duetime.rescheduled
    ADD CONSTRAINT rescheduled_pkey PRIMARY KEY (lane, task);

ALTER TABLE ONLY duetime.rule_change
    ADD CONSTRAINT rule_change_pkey PRIMARY KEY (kind);

ALTER TABLE ONLY duetime.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.schedule_state
    ADD CONSTRAINT schedule_state_pkey PRIMARY KEY (schedule);

ALTER TABLE ONLY duetime.schedule
    ADD CONSTRAINT schedule_tenant_name_key UNIQUE (tenant, name);

ALTER TABLE ONLY duetime.submit_rate
    ADD CONSTRAINT submit_rate_pkey PRIMARY KEY (tenant, key);

ALTER TABLE ONLY duetime.task
    ADD CONSTRAINT task_pkey PRIMARY KEY (lane, id);

ALTER TABLE ONLY duetime.task_type
    ADD CONSTRAINT task_type_pkey PRIMARY KEY (tenant, name);

ALTER TABLE ONLY duetime.tenant_breaker
    ADD CONSTRAINT tenant_breaker_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY duetime.tenant
    ADD CONSTRAINT tenant_name_key UNIQUE (name);

ALTER TABLE ONLY duetime.tenant
    ADD CONSTRAINT tenant_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duetime.tenant_rule_change
    ADD CONSTRAINT tenant_rule_change_pkey PRIMARY KEY (kind, tenant);

ALTER TABLE ONLY duetime.tier
    ADD CONSTRAINT tier_pkey PRIMARY KEY (name);

ALTER TABLE ONLY duetime.write_proof
    ADD CONSTRAINT write_proof_pkey PRIMARY KEY (node);

CREATE INDEX api_key_tenant ON duetime.api_key USING btree (tenant) WHERE (revoked_at IS NULL);

CREATE INDEX audit_tenant ON duetime.audit USING btree (tenant, id);

CREATE INDEX backfill_running ON duetime.backfill USING btree (lane) WHERE (state = 'running'::text);

CREATE INDEX backfill_schedule ON duetime.backfill USING btree (schedule, id);

CREATE INDEX claim_holder ON duetime.claim USING btree (holder, picked_at);

CREATE INDEX dead_died_at ON duetime.dead USING btree (died_at);

CREATE INDEX due_task ON ONLY duetime.due USING btree (COALESCE(home, lane), task) WHERE (wake <> task);

CREATE INDEX flow_key_expires ON duetime.flow_key USING btree (expires_at);

CREATE INDEX holder_ended ON duetime.holder USING btree (ended_at) WHERE (ended_at IS NOT NULL);

CREATE UNIQUE INDEX holder_name ON duetime.holder USING btree (tenant, name) WHERE (ended_at IS NULL);

CREATE INDEX idempotency_key_expires ON duetime.idempotency_key USING btree (expires_at);

CREATE INDEX listed_place ON duetime.listed USING btree (lane, place);

CREATE INDEX outbox_refused_at ON duetime.outbox_refused USING btree (refused_at);

CREATE INDEX submit_rate_even ON duetime.submit_rate USING btree (even_at);

CREATE INDEX task_expires ON ONLY duetime.task USING btree (expires_at, id) WHERE (expires_at IS NOT NULL);

CREATE INDEX task_type_change ON duetime.task_type USING btree (tenant, change);

CREATE INDEX tenant_change ON duetime.tenant USING btree (change) WHERE (change > 0);

CREATE INDEX tenant_rule_change_change ON duetime.tenant_rule_change USING btree (kind, change);

CREATE INDEX tenant_tier ON duetime.tenant USING btree (tier) WHERE (tier IS NOT NULL);

ALTER TABLE ONLY duetime.tenant_breaker
    ADD CONSTRAINT tenant_breaker_tenant_fkey FOREIGN KEY (tenant) REFERENCES duetime.tenant(id);

ALTER TABLE ONLY duetime.tenant
    ADD CONSTRAINT tenant_tier_fkey FOREIGN KEY (tier) REFERENCES duetime.tier(name);
