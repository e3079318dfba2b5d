-- name: list_refused
-- What was refused, by number.
-- Index: outbox_refused_pkey (tenant, id).
-- Gives: as many as fit (see pages.py).
SELECT id, CASE WHEN octet_length(body) <= @most::bigint THEN body END AS body, written_at, refused_at, code, detail, errors, found
  FROM (SELECT page.*, count(*) OVER () AS found,
               sum(LEAST(octet_length(body), @most::bigint) + octet_length(errors)) OVER (
                   ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
          FROM (SELECT *
                  FROM outbox_refused
                 WHERE tenant = @tenant::int
                   AND id > @after::bigint
                 ORDER BY id
                 LIMIT @limit::int) AS page) AS weighed
 WHERE COALESCE(bytes_before, 0) < @bytes::bigint
 ORDER BY id;

-- name: find
-- What became of a number: refused, a task, or not relayed yet; what is larger than @most has no body.
-- Index: outbox_refused_pkey, idempotency_key_pkey, outbox_aside_pkey; outbox itself is short, and read only for what is in neither.
SELECT 'refused' AS state, NULL::uuid AS task, CASE WHEN octet_length(body) <= @most::bigint THEN body END AS body
  FROM outbox_refused
 WHERE tenant = @tenant::int
   AND id = @id::bigint
 UNION ALL
SELECT 'accepted', task, NULL
  FROM idempotency_key
 WHERE tenant = @tenant::int
   AND key = @key::text
 UNION ALL
SELECT 'waiting', NULL, CASE WHEN octet_length(body) <= @most::bigint THEN body END
  FROM outbox_aside
 WHERE tenant = @tenant::int
   AND id = @id::bigint
 UNION ALL
SELECT 'waiting', NULL, CASE WHEN octet_length(body) <= @most::bigint THEN body END
  FROM outbox
 WHERE tenant = @tenant::int
   AND id = @id::bigint
 LIMIT 1;

-- name: get_refused
-- Index: outbox_refused_pkey (tenant, id).
SELECT id, CASE WHEN octet_length(body) <= @most::bigint THEN body END AS body, written_at, refused_at, code, detail, errors
  FROM outbox_refused
 WHERE tenant = @tenant::int
   AND id = @id::bigint;
