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

-- fragment: claims_asked_for
-- The claims of those attempts that are asked for and are still with their holder.
-- Index: claim_pkey; the LIMIT keeps the look-up by key, whatever the planner thinks of the table.
unnest(@lanes::int[], @tasks::uuid[], @numbers::int[]) AS asked (lane, task, number)
 CROSS JOIN LATERAL (
       SELECT *
         FROM claim
        WHERE claim.lane = asked.lane
          AND claim.task = asked.task
          AND claim.number = asked.number
        LIMIT 1) AS claim

-- fragment: rule_changed
-- Counts a change of a tenant's rules: `changed` has one row with its `kind`, or none if nothing was changed.
-- Locks: the row of the kind in rule_change, until the commit.
-- Index: rule_change_pkey (kind), tenant_rule_change_pkey (kind, tenant).
risen AS (
    UPDATE rule_change
       SET change = rule_change.change + 1, named = rule_change.named + 1
      FROM changed
     WHERE rule_change.kind = changed.kind
 RETURNING rule_change.kind, rule_change.change
),
{told}

-- fragment: told
-- Notes whose rules have changed, for the nodes that look at `risen`.
-- Index: tenant_rule_change_pkey (kind, tenant).
told AS (
    INSERT INTO tenant_rule_change (kind, tenant, change)
    SELECT kind, @tenant::int, change
      FROM risen
        ON CONFLICT (kind, tenant) DO UPDATE
       SET change = excluded.change
)

-- fragment: moment
-- Holds: the first wake that lies in the future.
-- Time:  the database's clock; @now stands for it in tests.
moment AS MATERIALIZED (
    SELECT mint_wake(floor(extract(epoch FROM COALESCE(@now::timestamptz, clock_timestamp())) * 1000)::bigint + 1,
                     0, 0) AS edge
)

-- fragment: task_wanted
-- Joins the task that is `wanted` (lane, id).
-- Index: task_pkey; the LIMIT keeps the look-up by key, whatever the planner thinks of the table.
CROSS JOIN LATERAL (
      SELECT *
        FROM task
       WHERE task.lane = wanted.lane
         AND task.id = wanted.id
       LIMIT 1) AS task

-- fragment: time_moved
-- Joins, as `moved`, the time that the task that is `wanted` (lane, id) has instead of its first one, if there is one.
-- Index: rescheduled_pkey; the LIMIT keeps the look-up by key.
LEFT JOIN LATERAL (
     SELECT run_at
       FROM rescheduled
      WHERE rescheduled.lane = wanted.lane
        AND rescheduled.task = wanted.id
      LIMIT 1) AS moved ON true

-- fragment: places_of_task
-- Joins each place in which the task that is `wanted` (lane, id) may be: claim, held, dead, due under its first wake
-- (`first`) or a later one (`later`), and its last attempt (`last`).
-- Index: the primary key of each, by (lane, task); due_task (home lane, task) only for tasks that are nowhere else,
--        because it has to ask every partition.  The LIMITs keep the look-ups by key, whatever the planner thinks of
--        the tables.
LEFT JOIN LATERAL (
     SELECT *
       FROM claim
      WHERE claim.lane = wanted.lane
        AND claim.task = wanted.id
      LIMIT 1) AS claim
  ON true
LEFT JOIN LATERAL (
     SELECT *
       FROM held
      WHERE held.lane = wanted.lane
        AND held.task = wanted.id
      LIMIT 1) AS held
  ON true
LEFT JOIN LATERAL (
     SELECT *
       FROM dead
      WHERE dead.lane = wanted.lane
        AND dead.task = wanted.id
      LIMIT 1) AS dead
  ON true
LEFT JOIN LATERAL (
     SELECT *
       FROM due
      WHERE due.lane = wanted.lane
        AND due.wake = wanted.id
        AND due.task = wanted.id
      LIMIT 1) AS first
  ON true
LEFT JOIN LATERAL (
     SELECT number, final, outcome, completed_at, result
       FROM attempt
      WHERE attempt.lane = wanted.lane
        AND attempt.task = wanted.id
      ORDER BY number DESC
      LIMIT 1) AS last
  ON true
LEFT JOIN LATERAL (
     SELECT wake, number, failures, crashes, releases
       FROM due
      WHERE COALESCE(due.home, due.lane) = wanted.lane
        AND due.task = wanted.id
        AND due.wake <> due.task
        AND COALESCE(claim.task, held.task, dead.task, first.task) IS NULL
        AND (last.final AND last.outcome IN (1, 6, 7)) IS NOT TRUE
      LIMIT 1) AS later
  ON true

-- fragment: state_of_task
-- The state as a user sees it, of is_running, held_reason, is_dead, wake, troubles, is_over and outcome, at `edge`.
CASE WHEN is_running THEN 'running'
     WHEN held_reason = 1 THEN 'paused'
     WHEN held_reason = 2 THEN 'blocked'
     WHEN is_dead THEN 'dead'
     WHEN wake < edge THEN 'ready'
     WHEN wake IS NOT NULL AND troubles > 0 THEN 'retrying'
     WHEN wake IS NOT NULL THEN 'scheduled'
     WHEN NOT is_over THEN NULL
     WHEN outcome = 1 THEN 'succeeded'
     WHEN outcome = 6 THEN 'cancelled'
     WHEN outcome = 7 THEN 'expired'
     -- At most once: the failure was final, and its dead letter is past its retention.
     WHEN is_over THEN 'dead'
END AS state
