-- name: read_hints
SELECT lane, drained
  FROM lane_hint;

-- name: keep_hints
-- How far lanes are drained for certain; a late copy could say more than is true by then, so it is run by `run_once`.
-- Index: lane_hint_pkey.
INSERT INTO lane_hint (lane, drained)
SELECT *
  FROM unnest(@lanes::int[], @drained::uuid[])
    ON CONFLICT (lane) DO UPDATE
   SET drained = excluded.drained;
