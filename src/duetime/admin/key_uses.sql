-- name: note
-- When keys were last used, and from where; what another node has noted since stays.
-- Locks: the rows, in the order of the keys, so that two nodes do not wait for each other.
-- Index: api_key_use_pkey.
-- Copies: a use that another call has recorded since stays.
INSERT INTO api_key_use AS kept (key, used_at, used_from)
SELECT key, used_at, used_from
  FROM unnest(@keys::int[], @used_ats::timestamptz[], @used_froms::text[]) AS used (key, used_at, used_from)
 ORDER BY key
    ON CONFLICT (key) DO UPDATE
   SET used_at = excluded.used_at, used_from = excluded.used_from
 WHERE kept.used_at < excluded.used_at;
