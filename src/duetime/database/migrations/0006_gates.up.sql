-- A task that is over a limit of its type, its key or its target waits in a lane of that gate.
-- `home` is then the lane of its id; it is NULL for all that wait where they belong.
ALTER TABLE due ADD COLUMN home int;
DROP INDEX due_task;
CREATE INDEX due_task ON due ((COALESCE(home, lane)), task) WHERE wake <> task;

-- The gate that all tasks of a lane wait for; '' for a lane that is home to its tasks.  A gate's lane is
-- given to another gate when it is empty: no task's id names it.
ALTER TABLE lane ADD COLUMN gate text NOT NULL DEFAULT '';
-- Which of the tenant's shards, where it is spread over several.
ALTER TABLE lane ADD COLUMN part smallint NOT NULL DEFAULT 0;
ALTER TABLE lane DROP CONSTRAINT lane_tenant_queue_class_kind_requires_key;
ALTER TABLE lane ADD CONSTRAINT lane_key UNIQUE (tenant, queue, class, kind, requires, gate, part);

-- Places under strict caps: whoever takes a row may let one attempt run.
CREATE TABLE limit_slot (
    tenant   int         NOT NULL,
    -- The limit, as gates name it.
    name     text        NOT NULL,
    slot     int         NOT NULL,
    lane     int         NOT NULL,
    task     uuid        NOT NULL,
    number   int         NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, name, slot)
) WITH (fillfactor = 50);

-- How often each kind of rule has changed, counted in the change's own commit: a node sees by one look whether it knows
-- them all.  A sequence would rise before the change can be seen, and who reads in between would miss it.
CREATE TABLE rule_change (
    kind   text   PRIMARY KEY,
    change bigint NOT NULL DEFAULT 1
);
INSERT INTO rule_change (kind) VALUES ('tenants'), ('types'), ('limits'), ('breakers');
DROP SEQUENCE task_type_change;
