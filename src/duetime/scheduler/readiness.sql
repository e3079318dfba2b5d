-- name: prove_write
-- Store a row that fills a page, so that both the table and the log must find room on their disks.
-- Locks: the own row; rows of nodes that have been gone for a day.
-- Index: write_proof_pkey; the table has a row for each node.
-- Copies: writes a row that only shows that writing is possible.
WITH forgotten AS (
    DELETE FROM write_proof
     WHERE node <> @node::text
       AND written_at < clock_timestamp() - interval '1 day'
)
INSERT INTO write_proof (node, written_at, filler)
VALUES (@node::text, clock_timestamp(), @filler::bytea)
    ON CONFLICT (node) DO UPDATE
   SET written_at = excluded.written_at, filler = excluded.filler;
