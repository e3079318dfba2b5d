-- Nodes that share the shards: those of one `cluster` see each other.  A row is
-- advice, not a lock: `beats` rises every second, and whoever watches it decides
-- by a clock of its own whether the node is there.  `incarnation` tells one start
-- from the next under the same name.
CREATE TABLE node (
    cluster     text        NOT NULL,
    name        text        NOT NULL,
    incarnation bigint      NOT NULL,
    address     text        NOT NULL,
    beats       bigint      NOT NULL DEFAULT 0,
    joined_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    beaten_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (cluster, name)
) WITH (fillfactor = 50);
