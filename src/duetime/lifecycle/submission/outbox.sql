-- name: read_visible
-- Rows of the transactions in `running`, and rows after the position `from` (transaction and id);
-- of both, only rows after the position `after`.  One row of NULL if there are none.
-- Index: outbox_pkey (transaction, id).  Each part has one start condition, because a scan that
--        starts at the lesser of two would read rows that were relayed long ago and cannot be
--        vacuumed while some transaction stays open.
SELECT seen.snapshot::text AS snapshot, written.*
  FROM (SELECT pg_current_snapshot() AS snapshot) AS seen
  LEFT JOIN LATERAL (
       (SELECT transaction, id, tenant, body, written_at
          FROM outbox
         WHERE transaction = ANY(@running::bigint[])
           AND (transaction <> @after_transaction::bigint OR id > @after_id::bigint)
         ORDER BY transaction, id
         LIMIT @limit::int)
        UNION ALL
       (SELECT transaction, id, tenant, body, written_at
          FROM outbox
         WHERE (transaction, id) > (@from_transaction::bigint, @from_id::bigint)
         ORDER BY transaction, id
         LIMIT @limit::int)) AS written ON true
 ORDER BY written.transaction, written.id
 LIMIT @limit::int;

-- name: take
-- Take rows out, for tasks that are stored in the same transaction.
-- Locks: the rows, without those that another relay is taking.
-- Index: outbox_pkey (transaction, id).
WITH picked AS MATERIALIZED (
    SELECT outbox.transaction, outbox.id
      FROM unnest(@transactions::bigint[], @ids::bigint[]) AS asked (transaction, id)
      JOIN outbox
        ON outbox.transaction = ANY (ARRAY[asked.transaction])  -- see claim.sql
       AND outbox.id = asked.id
     ORDER BY asked.transaction, asked.id
       FOR UPDATE OF outbox SKIP LOCKED
)
DELETE FROM outbox
 USING picked
 WHERE outbox.transaction = ANY (ARRAY[picked.transaction])
   AND outbox.id = picked.id
RETURNING outbox.id;

-- name: put_aside
-- Put aside rows that were taken out and have to wait, each under its tenant.
INSERT INTO outbox_aside (tenant, id, body, written_at)
SELECT put.tenant, put.id, put.body, put.written_at
  FROM unnest(@tenants::int[], @ids::bigint[], @bodies::bytea[], @written_ats::timestamptz[])
           AS put (tenant, id, body, written_at);

-- name: read_owners
-- The tenants of rows that were put aside: one probe of the index for each tenant.
-- Index: outbox_aside_pkey (tenant, id).
WITH RECURSIVE owner AS (
    (SELECT tenant FROM outbox_aside ORDER BY tenant LIMIT 1)
     UNION ALL
    SELECT (SELECT tenant FROM outbox_aside WHERE tenant > owner.tenant ORDER BY tenant LIMIT 1)
      FROM owner
     WHERE owner.tenant IS NOT NULL
)
SELECT tenant
  FROM owner
 WHERE tenant IS NOT NULL;

-- name: read_sizes
-- Index: outbox_aside_pkey (tenant, id).
SELECT octet_length(body) AS size
  FROM outbox_aside
 WHERE tenant = @tenant::int
 ORDER BY id
 LIMIT @limit::int;

-- name: read_aside
-- Index: outbox_aside_pkey (tenant, id).
SELECT 0 AS transaction, id, tenant, body, written_at
  FROM outbox_aside
 WHERE tenant = @tenant::int
 ORDER BY id
 LIMIT @limit::int;

-- name: take_aside
-- As `take`, for rows that were put aside.
-- Locks: the rows, without those that another relay is taking.
-- Index: outbox_aside_pkey (tenant, id).
WITH picked AS MATERIALIZED (
    SELECT outbox_aside.tenant, outbox_aside.id
      FROM unnest(@tenants::int[], @ids::bigint[]) AS asked (tenant, id)
      JOIN outbox_aside
        ON outbox_aside.tenant = ANY (ARRAY[asked.tenant])  -- see claim.sql
       AND outbox_aside.id = asked.id
     ORDER BY asked.tenant, asked.id
       FOR UPDATE OF outbox_aside SKIP LOCKED
)
DELETE FROM outbox_aside
 USING picked
 WHERE outbox_aside.tenant = ANY (ARRAY[picked.tenant])
   AND outbox_aside.id = picked.id
RETURNING outbox_aside.id;

-- name: note_tasks
-- Which task a number in the outbox became, under a key that clients cannot choose, for a day and while it is open.
INSERT INTO idempotency_key (tenant, key, task, fingerprint, expires_at)
SELECT noted.tenant, noted.key, noted.task, '', clock_timestamp() + interval '1 day'
  FROM unnest(@tenants::int[], @keys::text[], @tasks::uuid[]) AS noted (tenant, key, task)
 ORDER BY noted.tenant, noted.key
    ON CONFLICT (tenant, key) DO NOTHING;

-- name: refuse
INSERT INTO outbox_refused (tenant, id, body, written_at, code, detail, errors)
SELECT refused.*
  FROM unnest(@tenants::int[], @ids::bigint[], @bodies::bytea[], @written_ats::timestamptz[], @codes::text[],
              @details::text[], @errors::bytea[]) AS refused;

-- name: retry
-- Let the relay try the row again, under the same number.
WITH picked AS (
    DELETE FROM outbox_refused
     WHERE tenant = @tenant::int
       AND id = @id::bigint
 RETURNING id, tenant, body, written_at
)
INSERT INTO outbox (id, tenant, body, written_at)
OVERRIDING SYSTEM VALUE
SELECT id, tenant, body, written_at
  FROM picked
RETURNING id;

-- name: delete_refused
DELETE FROM outbox_refused
 WHERE tenant = @tenant::int
   AND id = @id::bigint
RETURNING id;

-- name: retire_refused
-- Index: outbox_refused_at.
-- Copies: the same rows are too old at any later time.
DELETE FROM outbox_refused
 WHERE refused_at < @before::timestamptz;
