-- Fragments that statements of several files use.  A fragment that only one file uses stands in that file.

-- fragment: started
-- Holds: when the statement began.
-- Time:  the database's clock, read after the transaction has its number; @now stands for it in tests.
started AS MATERIALIZED (
    SELECT pg_current_xact_id() AS transaction, COALESCE(@now::timestamptz, clock_timestamp()) AS at
)

-- fragment: started_with_salt
-- Holds: when the statement began, and what keeps apart the wakes that it mints.
-- Time:  as `started`.
started AS MATERIALIZED (
    SELECT pg_current_xact_id() AS transaction, COALESCE(@now::timestamptz, clock_timestamp()) AS at,
           random_salt() AS salt
)

-- fragment: fresh_ids
-- Holds: in `fresh` one row if the ids were minted @minted_ms lately, otherwise none: at most @tolerance_ms before the
--        database's clock, and at most @ahead_ms after it.
-- Time:  the clock is read after the transaction has its number: a claimer may then forget what lies further back.
{started},
fresh AS MATERIALIZED (
    SELECT at, to_timestamp(@minted_ms::bigint / 1000.0) AS minted_at
      FROM started
     WHERE to_ms(at) BETWEEN @minted_ms::bigint - @ahead_ms::bigint AND @minted_ms::bigint + @tolerance_ms::bigint
)

-- fragment: fresh_or_later_ids
-- Holds: as fresh_ids, but also a row for ids that lie ahead of the clock.
-- Time:  ids that are too old stay so, whatever begins later; those that lie ahead do not.
{started},
fresh AS MATERIALIZED (
    SELECT at, to_timestamp(@minted_ms::bigint / 1000.0) AS minted_at
      FROM started
     WHERE to_ms(at) <= @minted_ms::bigint + @tolerance_ms::bigint
)

-- fragment: taken_claims
-- Takes: the claims at the places in `mine`.  A row that somebody else takes meanwhile is not deleted, and so not here.
-- Holds: in `gone` the tasks of those that were deleted.
gone AS (
    DELETE FROM claim
     WHERE ctid = ANY (ARRAY(SELECT place FROM mine))
 RETURNING task
)
