-- name: look_ahead
-- How many rows of the lane come before this one, counted no further than @most,
-- whether someone runs tasks of the lane (a busy worker does not ask for more), and
-- whether the queue is paused and the tenant suspended: nodes hear of that later.
-- Index: due_pkey (lane, wake); claim_pkey (lane, task); limit_rule_pkey (tenant, scope, name); tenant_pkey.
SELECT (SELECT count(*)
          FROM (SELECT
                  FROM due
                 WHERE due.lane = @lane::int
                   AND due.wake < @wake::uuid
                 LIMIT @most::int) AS earlier) AS ahead,
       EXISTS (SELECT
                 FROM claim
                WHERE claim.lane = @home::int) AS is_served,
       EXISTS (SELECT
                 FROM limit_rule
                WHERE tenant = @tenant::int
                  AND scope = @queues::smallint
                  AND name = @queue::text
                  AND state = 'paused') AS is_paused,
       EXISTS (SELECT
                 FROM tenant
                WHERE id = @tenant::int
                  AND state = 'suspended') AS is_suspended;
