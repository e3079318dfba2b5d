-- name: look_ahead
-- How many rows of the lane come before this one, counted no further than @most,
-- and whether someone runs tasks of the lane: a busy worker does not ask for more.
-- Index: due_pkey (lane, wake); claim_pkey (lane, task).
SELECT (SELECT count(*)
          FROM (SELECT
                  FROM due
                 WHERE due.lane = @lane::int
                   AND due.wake < @wake::uuid
                 LIMIT @most::int) AS earlier) AS ahead,
       EXISTS (SELECT
                 FROM claim
                WHERE claim.lane = @home::int) AS is_served;
