-- Since when a holder has said that it runs what it runs, in microseconds since 1970: a time-out counts from then, also on another node.
ALTER TABLE holder ADD COLUMN running_us bigint[] NOT NULL DEFAULT '{}';
