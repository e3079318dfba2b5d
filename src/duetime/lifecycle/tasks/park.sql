-- name: park
-- Return claims that a limit does not let start to `due`, in the lane of their gate, with the same number.
-- Takes: claim (lane, task, number, holder, picked_at).  Leaves: due in the gate's lane.
-- Index: claim_pkey, by key, whatever the planner thinks (see onward.sql).
-- Time:  the wake is minted from the database's clock, read after the transaction has its number; @salt counts on from
--        call to call, so what a node parks in one millisecond keeps its order.
-- Copies: names the time of the claim too, because a parked task may be claimed again under the same number.
WITH started AS MATERIALIZED (
    SELECT pg_current_xact_id() AS transaction, COALESCE(@now::timestamptz, clock_timestamp()) AS at,
           @salt::bigint AS salt
),
mine AS MATERIALIZED (
    SELECT asked.*, found.place, found.failures, found.crashes, found.releases
      FROM unnest(@lanes::int[], @tasks::uuid[], @numbers::int[], @holders::bigint[], @picked_ats::timestamptz[],
                  @gates::int[], @waits_ms::bigint[])
          WITH ORDINALITY AS asked (lane, task, number, holder, picked_at, gate, wait_ms, ordinal)
     CROSS JOIN LATERAL (
           SELECT claim.ctid AS place, claim.failures, claim.crashes, claim.releases
             FROM claim
            WHERE claim.lane = asked.lane
              AND claim.task = asked.task
              AND claim.number = asked.number
              AND claim.holder + 0 = asked.holder
              AND (claim.picked_at = asked.picked_at) IS TRUE  -- not by claim_holder
            LIMIT 1) AS found
),
{taken_claims}
INSERT INTO due (lane, wake, task, number, failures, crashes, releases, home)
SELECT gate, mint_wake(to_ms(at) + wait_ms, gate, salt + ordinal), task, number, failures, crashes, releases,
       NULLIF(lane, gate)
  FROM mine, started
 WHERE (mine.task IN (SELECT task FROM gone)) IS TRUE
RETURNING wake;

-- name: read_running
-- What runs in these lanes, with the values that decide its gate.
-- Index: claim_pkey (lane, task), then task_pkey.
SELECT claim.lane, claim.task, claim.number, task.type, task.payload, task.options
  FROM claim
 CROSS JOIN LATERAL (  -- the LIMIT keeps the look-up by key, also in a plan made while the table was tiny
       SELECT *
         FROM task
        WHERE task.lane = claim.lane
          AND task.id = claim.task
        LIMIT 1) AS task
 WHERE claim.lane = ANY (@lanes::int[]);

-- name: read_ended
-- Which of these attempts no longer run.
-- Index: claim_pkey (lane, task).
SELECT asked.task, asked.number
  FROM unnest(@lanes::int[], @tasks::uuid[], @numbers::int[]) AS asked (lane, task, number)
  LEFT JOIN LATERAL (
       SELECT claim.task
         FROM claim
        WHERE claim.lane = asked.lane
          AND claim.task = asked.task
          AND claim.number = asked.number
        LIMIT 1) AS running ON true
 WHERE running.task IS NULL;

-- name: retire_slots
-- Delete places that have not been taken for a day.
-- Copies: a place that was taken since is newer, and stays.
DELETE FROM limit_slot
 WHERE taken_at < @before::timestamptz
   AND NOT EXISTS (SELECT
                     FROM claim
                    WHERE claim.lane = limit_slot.lane
                      AND claim.task = limit_slot.task
                      AND claim.number = limit_slot.number);

-- fragment: taken_slot
-- Joins the attempt that has the place `each` under `rule`, and whether it still runs.
-- Index: limit_slot_pkey (tenant, name, slot), claim_pkey (lane, task); the LIMITs keep the look-ups by key, also in a
--        plan made while the tables were tiny.
LEFT JOIN LATERAL (
     SELECT *
       FROM limit_slot
      WHERE limit_slot.tenant = rule.tenant
        AND limit_slot.name = rule.name
        AND limit_slot.slot = each.slot
      LIMIT 1) AS taken ON true
LEFT JOIN LATERAL (
     SELECT claim.task
       FROM claim
      WHERE claim.lane = taken.lane
        AND claim.task = taken.task
        AND claim.number = taken.number
      LIMIT 1) AS holding ON true

-- name: take_slots
-- Places under strict caps, for attempts that are to be handed out.  A place is free if no attempt has it, or if the
-- claim of its attempt is gone.  A task that was parked with a place keeps it.  Some free places are not given out: as
-- many as are taken above a cap that was lowered, and one for another node that has waited for it (slot 0, see
-- await_slots).
-- If two want the same place, the second finds it changed and gets none.
-- Index: limit_slot_pkey (tenant, name, slot), claim_pkey (lane, task).
-- Gives: which of the asked (by ordinal) have got one.
-- Copies: names when the place was taken; a place whose attempt does not run is free.
WITH asked AS MATERIALIZED (
    SELECT *
      FROM unnest(@tenants::int[], @names::text[], @caps::int[], @lanes::int[], @tasks::uuid[], @numbers::int[])
          WITH ORDINALITY AS asked (tenant, name, cap, lane, task, number, ordinal)
),
rule AS MATERIALIZED (
    SELECT tenant, name, max(cap) AS cap
      FROM asked
     GROUP BY tenant, name
),
place AS MATERIALIZED (
    SELECT rule.tenant, rule.name, each.slot, each.slot > rule.cap AS is_above, taken.task, taken.number,
           taken.taken_at, holding.task IS NOT NULL AS is_held
      FROM rule
     CROSS JOIN LATERAL (
           SELECT slot
             FROM generate_series(1, rule.cap) AS slot
            UNION ALL
           SELECT limit_slot.slot
             FROM limit_slot
            WHERE limit_slot.tenant = rule.tenant
              AND limit_slot.name = rule.name
              AND limit_slot.slot > rule.cap) AS each
      {taken_slot}
),
own AS MATERIALIZED (  -- a FULL JOIN, here and below, cannot be made by comparing each with each
    SELECT *
      FROM (SELECT *
              FROM asked
              FULL JOIN place
             USING (tenant, name, task, number)
            OFFSET 0) AS met
     WHERE ordinal IS NOT NULL
       AND slot IS NOT NULL
),
above AS MATERIALIZED (
    SELECT tenant, name, count(*)
      FROM place
     WHERE is_above
       AND is_held
       AND ((tenant, name, slot) NOT IN (SELECT tenant, name, slot FROM own)) IS TRUE
     GROUP BY tenant, name
),
first AS MATERIALIZED (
    SELECT rule.tenant, rule.name, waiting.place, waiting.number,
           waiting.number <> @asker::int AND waiting.taken_at > clock_timestamp() - interval '0.5 seconds' AS is_waiting
      FROM rule
     CROSS JOIN LATERAL (
           SELECT limit_slot.ctid AS place, limit_slot.number, limit_slot.taken_at
             FROM limit_slot
            WHERE limit_slot.tenant = rule.tenant
              AND limit_slot.name = rule.name
              AND limit_slot.slot = 0
            LIMIT 1) AS waiting
),
wanted AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY tenant, name ORDER BY ordinal) AS turn
      FROM asked
     WHERE (ordinal NOT IN (SELECT own.ordinal FROM own WHERE NOT own.is_above)) IS TRUE
),
free AS MATERIALIZED (  -- the last of them stay free
    SELECT tenant, name, slot, taken_at,
           row_number() OVER (PARTITION BY tenant, name ORDER BY slot DESC)
               - COALESCE(above.count, 0) - ((tenant, name) IN (SELECT tenant, name FROM first WHERE is_waiting))::int AS left_over,
           row_number() OVER (PARTITION BY tenant, name ORDER BY slot) AS turn
      FROM (SELECT * FROM place WHERE NOT is_held AND NOT is_above) AS place
      LEFT JOIN above
     USING (tenant, name)
),
matched AS MATERIALIZED (
    SELECT ordinal, tenant, name, lane, task, number, slot, taken_at
      FROM (SELECT *
              FROM wanted
              FULL JOIN free
             USING (tenant, name, turn)
            OFFSET 0) AS met
     WHERE ordinal IS NOT NULL
       AND left_over > 0
     UNION ALL  -- who asks again says so: somebody may have seen the place before the task was claimed again
    SELECT ordinal, tenant, name, lane, task, number, slot, taken_at
      FROM own
     WHERE NOT is_above
),
changed AS (
    UPDATE limit_slot
       SET lane = matched.lane, task = matched.task, number = matched.number, taken_at = clock_timestamp()
      FROM matched
     WHERE limit_slot.tenant = ANY (ARRAY[matched.tenant])
       AND limit_slot.name = matched.name
       AND limit_slot.slot = matched.slot
       AND limit_slot.taken_at = matched.taken_at
 RETURNING matched.ordinal
),
made AS (
    INSERT INTO limit_slot (tenant, name, slot, lane, task, number)
    SELECT tenant, name, slot, lane, task, number
      FROM matched
     WHERE taken_at IS NULL
     ORDER BY tenant, name, slot
        ON CONFLICT DO NOTHING
 RETURNING tenant, name, slot
),
over AS (
    DELETE FROM limit_slot
     WHERE ctid = ANY (ARRAY(SELECT place
                               FROM first
                              WHERE number = @asker::int
                                AND ((tenant, name) IN (SELECT tenant, name FROM matched)) IS TRUE))
       AND slot + 0 = 0  -- not by the index
       AND number = @asker::int
)
SELECT ordinal FROM changed
 UNION ALL
SELECT ordinal
  FROM matched
 WHERE ((tenant, name, slot) IN (SELECT tenant, name, slot FROM made)) IS TRUE;

-- name: await_slots
-- Record that a node that got no place waits (slot 0), unless another node waits already, and check for a free place.
-- Index: limit_slot_pkey (tenant, name, slot), claim_pkey (lane, task).
-- Gives: the caps (by ordinal) under which it may have one.
-- Copies: a node counts as waiting half a second longer.
WITH asked AS MATERIALIZED (
    SELECT *
      FROM unnest(@tenants::int[], @names::text[], @caps::int[]) WITH ORDINALITY AS asked (tenant, name, cap, ordinal)
),
waiting AS (
    INSERT INTO limit_slot AS kept (tenant, name, slot, lane, task, number)
    SELECT tenant, name, 0, 0, '00000000-0000-0000-0000-000000000000', @asker::int
      FROM asked
     ORDER BY tenant, name
        ON CONFLICT (tenant, name, slot) DO UPDATE
       SET number = excluded.number, taken_at = clock_timestamp()
     WHERE kept.number = excluded.number
        OR kept.taken_at <= clock_timestamp() - interval '0.5 seconds'
 RETURNING kept.tenant, kept.name
)
SELECT rule.ordinal
  FROM asked AS rule
  JOIN waiting
 USING (tenant, name)
 CROSS JOIN LATERAL (
       SELECT count(holding.task)
         FROM generate_series(1, rule.cap) AS each (slot)
         {taken_slot}) AS taken
 WHERE taken.count < rule.cap;
