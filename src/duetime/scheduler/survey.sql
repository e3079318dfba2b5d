-- name: read_oldest
-- The oldest due row of each lane, behind its hint, with the lane's tenant, and whether someone runs tasks of the
-- lane: a busy worker does not ask for more.  A lane without a due row is left out.
-- Index: due_pkey (lane, wake); claim_pkey (lane, task), from its end; lane_pkey; tenant_pkey.
-- Time:  @until is the wake that stands for the database's now().
SELECT asked.lane, tenant.name AS tenant, oldest.wake, running.task IS NOT NULL AS is_served
  FROM unnest(@lanes::int[], @hints::uuid[]) AS asked (lane, hint)
 CROSS JOIN LATERAL (
       SELECT due.wake
         FROM due
        WHERE due.lane = asked.lane
          AND due.wake > asked.hint
          AND due.wake <= @until::uuid
        ORDER BY due.wake
        LIMIT 1) AS oldest
  LEFT JOIN LATERAL (
       SELECT claim.task
         FROM claim
        WHERE claim.lane = asked.lane
        ORDER BY claim.task DESC  -- the youngest is the likeliest to be there still; what ended may lie in front of it
        LIMIT 1) AS running ON true
  JOIN lane
    ON lane.id = asked.lane
  JOIN tenant
    ON tenant.id = lane.tenant;

-- name: count_due
-- How many rows of each lane are due, counted no further than @most.
-- Index: due_pkey (lane, wake).
-- Time:  @until is the wake that stands for the database's now().
SELECT asked.lane, waiting.count
  FROM unnest(@lanes::int[]) AS asked (lane)
 CROSS JOIN LATERAL (
       SELECT count(*)
         FROM (SELECT
                 FROM due
                WHERE due.lane = asked.lane
                  AND due.wake <= @until::uuid
                LIMIT @most::int) AS counted) AS waiting;
