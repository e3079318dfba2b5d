-- name: park
-- A claim that a limit keeps from being handed out waits again, in the lane of its gate, with the same number.
-- Takes: claim (lane, task, number, holder).  Leaves: due in the gate's lane.
-- Index: claim_pkey, by key, whatever the planner thinks (see onward.sql).
-- Time:  the wake is minted from the database's clock, read after the transaction has its number.
WITH started AS MATERIALIZED (
    SELECT pg_current_xact_id() AS transaction, COALESCE(@now::timestamptz, clock_timestamp()) AS at,
           random_salt() AS salt
),
mine AS MATERIALIZED (
    SELECT asked.*, found.place, found.failures, found.crashes, found.releases
      FROM unnest(@lanes::int[], @tasks::uuid[], @numbers::int[], @holders::bigint[], @gates::int[], @waits_ms::bigint[])
          WITH ORDINALITY AS asked (lane, task, number, holder, gate, wait_ms, ordinal)
     CROSS JOIN LATERAL (
           SELECT claim.ctid AS place, claim.failures, claim.crashes, claim.releases
             FROM claim
            WHERE claim.lane = asked.lane
              AND claim.task = asked.task
              AND claim.number = asked.number
              AND claim.holder + 0 = asked.holder
            LIMIT 1) AS found
),
gone AS (
    DELETE FROM claim
     WHERE ctid = ANY (ARRAY(SELECT place FROM mine))
 RETURNING task
)
INSERT INTO due (lane, wake, task, number, failures, crashes, releases, home)
SELECT gate, mint_wake(to_ms(at) + wait_ms, gate, salt + ordinal), task, number, failures, crashes, releases,
       NULLIF(lane, gate)
  FROM mine, started
 WHERE (mine.task IN (SELECT task FROM gone)) IS TRUE
RETURNING wake;

-- name: read_running
-- What runs in these lanes, with what its gate follows from.
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
-- Which of these attempts run no more.
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
-- Places that nobody has had for a day.
DELETE FROM limit_slot
 WHERE taken_at < @before::timestamptz
   AND NOT EXISTS (SELECT
                     FROM claim
                    WHERE claim.lane = limit_slot.lane
                      AND claim.task = limit_slot.task
                      AND claim.number = limit_slot.number);

-- name: take_slots
-- Places under strict caps, for attempts that are about to be handed out.  A place is free if nobody has it, if the
-- claim of who had it is gone, or if who has it asks again: it was parked with it.  Of those that are free, so many are
-- left as are taken above a cap that was lowered.
-- Two that want the same place: the second finds it changed, and gets none.
-- Index: limit_slot_pkey (tenant, name, slot), claim_pkey (lane, task).
-- Gives: which of the asked (by ordinal) have got one.
WITH asked AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY tenant, name ORDER BY ordinal) AS turn
      FROM unnest(@tenants::int[], @names::text[], @caps::int[], @lanes::int[], @tasks::uuid[], @numbers::int[])
          WITH ORDINALITY AS asked (tenant, name, cap, lane, task, number, ordinal)
),
free AS MATERIALIZED (
    SELECT rule.tenant, rule.name, place.slot, taken.task AS seen_task, taken.number AS seen_number,
           row_number() OVER (PARTITION BY rule.tenant, rule.name ORDER BY place.slot) AS turn,
           count(*) OVER (PARTITION BY rule.tenant, rule.name) - above.count AS most
      FROM (SELECT DISTINCT tenant, name, cap FROM asked) AS rule
     CROSS JOIN LATERAL (
           SELECT count(*)
             FROM limit_slot AS taken
            WHERE taken.tenant = rule.tenant
              AND taken.name = rule.name
              AND taken.slot > rule.cap
              AND EXISTS (SELECT
                            FROM claim
                           WHERE claim.lane = taken.lane
                             AND claim.task = taken.task
                             AND claim.number = taken.number)
              AND NOT EXISTS (SELECT
                                FROM asked
                               WHERE asked.tenant = taken.tenant
                                 AND asked.name = taken.name
                                 AND asked.task = taken.task
                                 AND asked.number = taken.number)) AS above
     CROSS JOIN LATERAL generate_series(1, rule.cap) AS place (slot)
      LEFT JOIN LATERAL (  -- the LIMITs keep the look-ups by key, also in a plan made while the tables were tiny
           SELECT *
             FROM limit_slot
            WHERE limit_slot.tenant = rule.tenant
              AND limit_slot.name = rule.name
              AND limit_slot.slot = place.slot
            LIMIT 1) AS taken ON true
      LEFT JOIN LATERAL (
           SELECT claim.task
             FROM claim
            WHERE claim.lane = taken.lane
              AND claim.task = taken.task
              AND claim.number = taken.number
            LIMIT 1) AS holding ON true
     WHERE holding.task IS NULL
        OR EXISTS (SELECT
                     FROM asked
                    WHERE asked.tenant = taken.tenant
                      AND asked.name = taken.name
                      AND asked.task = taken.task
                      AND asked.number = taken.number)
),
matched AS MATERIALIZED (
    SELECT asked.*, free.slot, free.seen_task, free.seen_number
      FROM asked
      JOIN free
        ON free.tenant = asked.tenant
       AND free.name = asked.name
       AND free.turn = asked.turn
       AND free.turn <= free.most
),
changed AS (
    UPDATE limit_slot
       SET lane = matched.lane, task = matched.task, number = matched.number, taken_at = clock_timestamp()
      FROM matched
     WHERE limit_slot.tenant = matched.tenant
       AND limit_slot.name = matched.name
       AND limit_slot.slot = matched.slot
       AND limit_slot.task = matched.seen_task
       AND limit_slot.number = matched.seen_number
 RETURNING matched.ordinal
),
made AS (
    INSERT INTO limit_slot (tenant, name, slot, lane, task, number)
    SELECT tenant, name, slot, lane, task, number
      FROM matched
     WHERE seen_task IS NULL
     ORDER BY tenant, name, slot
        ON CONFLICT DO NOTHING
 RETURNING tenant, name, slot
)
SELECT ordinal FROM changed
 UNION ALL
SELECT matched.ordinal
  FROM matched
  JOIN made
    ON made.tenant = matched.tenant
   AND made.name = matched.name
   AND made.slot = matched.slot;
