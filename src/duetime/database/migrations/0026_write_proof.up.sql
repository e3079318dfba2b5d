-- Where a node shows that it can write.  A row fills a page, so that the table must find room on the disk as others must.
CREATE TABLE write_proof (
    node text PRIMARY KEY,
    written_at timestamptz NOT NULL,
    filler bytea NOT NULL
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE write_proof ALTER COLUMN filler SET STORAGE PLAIN;
