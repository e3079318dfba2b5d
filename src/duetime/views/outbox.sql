-- name: list_refused
SELECT id, body, written_at, refused_at, code, detail, errors
  FROM outbox_refused
 WHERE tenant = @tenant::int
   AND id > @after::bigint
 ORDER BY id
 LIMIT @limit::int;

-- name: find
-- What became of a number: refused, a task, or not relayed yet.
-- Index: outbox_refused_pkey, idempotency_key_pkey, outbox_aside_pkey; outbox itself is short, and read only for what is in neither.
SELECT 'refused' AS state, NULL::uuid AS task, body
  FROM outbox_refused
 WHERE tenant = @tenant::int
   AND id = @id::bigint
 UNION ALL
SELECT 'accepted', task, NULL
  FROM idempotency_key
 WHERE tenant = @tenant::int
   AND key = @key::text
 UNION ALL
SELECT 'waiting', NULL, body
  FROM outbox_aside
 WHERE tenant = @tenant::int
   AND id = @id::bigint
 UNION ALL
SELECT 'waiting', NULL, body
  FROM outbox
 WHERE tenant = @tenant::int
   AND id = @id::bigint
 LIMIT 1;

-- name: get_refused
SELECT id, body, written_at, refused_at, code, detail, errors
  FROM outbox_refused
 WHERE tenant = @tenant::int
   AND id = @id::bigint;
