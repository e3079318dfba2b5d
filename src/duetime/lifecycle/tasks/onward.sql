-- Both moves find their claims one by one, by key, whatever the planner thinks of a
-- table that was empty when it planned: a LIMIT in a LATERAL keeps the look-up by
-- claim_pkey, and the delete goes by the rows' places.  "holder + 0" keeps it from
-- claim_holder, which would read all that the holder has for each report.  A row
-- that somebody else takes meanwhile is not deleted, and so not gone.  "IS TRUE"
-- keeps the IN from becoming a join, which would compare each with each: 46 µs a
-- row in batches of 1,000, against 10.

-- fragment: claim_of_report
-- The claim that a report is about, with its place in the table.
CROSS JOIN LATERAL (
      SELECT claim.ctid AS place, claim.picked_at
        FROM claim
       WHERE claim.lane = report.lane
         AND claim.task = report.task
         AND claim.number = report.number
         AND claim.holder + 0 = report.holder
       LIMIT 1) AS found

-- name: end_succeeded
-- The most frequent end: the attempt succeeded, and its task is over.
-- Takes: claim (lane, task, number, holder).  Leaves: a final attempt.
-- Gives: how many there were, and the places of the reports that counted, if not all.
-- A value that is the same for all reports is given once, and its array is NULL: unnesting an array costs as much as
-- the look-up.  Times are microseconds since 1970.
-- Copies: names (task, number, holder); each return to due changes the number, or parks what was not handed out.
WITH started AS MATERIALIZED (
    SELECT clock_timestamp() AS at
),
mine AS MATERIALIZED (
    SELECT report.*, found.place, found.picked_at
      FROM (SELECT COALESCE(asked.lane, @lane::int) AS lane, asked.task, COALESCE(asked.number, @number::int) AS number,
                   COALESCE(asked.holder, @holder::bigint) AS holder, asked.started_us, asked.completed_us,
                   asked.result, asked.detail, asked.ordinal
              FROM unnest(@lanes::int[], @tasks::uuid[], @numbers::int[], @holders::bigint[], @started_us::bigint[],
                          @completed_us::bigint[], @results::bytea[], @details::bytea[])
                  WITH ORDINALITY
                       AS asked (lane, task, number, holder, started_us, completed_us, result, detail, ordinal)
           ) AS report
     {claim_of_report}
),
{taken_claims},
written AS (
    INSERT INTO attempt (lane, task, number, outcome, final, holder, picked_at, started_at, completed_at, result,
                         detail)
    SELECT lane, task, number, 1, true, holder, picked_at,
           CASE WHEN started_us IS NOT NULL THEN GREATEST(picked_at, LEAST(to_timestamp(started_us / 1e6::float8), at)) END,
           GREATEST(picked_at, LEAST(to_timestamp(completed_us / 1e6::float8), at)),
           result, detail
      FROM started, mine
     WHERE (SELECT count(*) FROM gone) = (SELECT count(*) FROM mine)  -- nearly always, and then nothing is looked up
        OR (mine.task IN (SELECT task FROM gone)) IS TRUE
)
SELECT ended.count,
       CASE WHEN ended.count < cardinality(@tasks::uuid[])
            THEN ARRAY(SELECT ordinal FROM mine WHERE (mine.task IN (SELECT task FROM gone)) IS TRUE) END AS places
  FROM (SELECT count(*) FROM gone) AS ended;

-- name: move_onward
-- Any other end of attempts: it is recorded, and their tasks wait again or are dead.
-- Takes: claim (lane, task, number, holder).  Leaves: attempt, and due or dead.
-- Time:  the next wake is minted from the database's clock, read after the
--        transaction has its number, so it cannot lie behind a firm hint.
-- Gives: the attempts that ended, and the wakes of tasks that wait again.
-- Copies: names (task, number, holder), as end_succeeded.
WITH {started_with_salt},
mine AS MATERIALIZED (
    SELECT report.*, found.place, found.picked_at
      FROM unnest(@lanes::int[], @tasks::uuid[], @numbers::int[], @holders::bigint[], @outcomes::smallint[],
                  @finals::boolean[], @started_ats::timestamptz[], @completed_ats::timestamptz[],
                  @results::bytea[], @details::bytea[], @waits_ms::bigint[],
                  @failures::smallint[], @crashes::smallint[], @releases::smallint[], @reasons::text[])
          WITH ORDINALITY
               AS report (lane, task, number, holder, outcome, final, started_at, completed_at, result, detail,
                          wait_ms, failures, crashes, releases, reason, ordinal)
     {claim_of_report}
),
{taken_claims},
ended AS MATERIALIZED (
    SELECT *
      FROM mine
     WHERE (mine.task IN (SELECT task FROM gone)) IS TRUE
),
written AS (
    INSERT INTO attempt (lane, task, number, outcome, final, holder, picked_at, started_at, completed_at, result,
                         detail)
    SELECT lane, task, number, outcome, final, holder, picked_at,
           CASE WHEN started_at IS NOT NULL THEN GREATEST(picked_at, LEAST(started_at, at)) END,
           GREATEST(picked_at, LEAST(completed_at, at)), result, detail
      FROM ended, started
),
again AS (
    INSERT INTO due (lane, wake, task, number, failures, crashes, releases)
    SELECT lane, mint_wake(to_ms(at) + wait_ms, lane, salt + ordinal), task, number + 1, failures, crashes, releases
      FROM ended, started
     WHERE wait_ms IS NOT NULL
 RETURNING task, wake
),
buried AS (
    INSERT INTO dead (lane, task, number, reason, died_at)
    SELECT lane, task, number, reason, at
      FROM ended, started
     WHERE reason IS NOT NULL
)
SELECT task, number, NULL::uuid AS wake FROM ended
 UNION ALL
SELECT task, NULL, wake FROM again;

-- name: read_claims
-- What is needed to decide what follows: counts, options, and when the first of the
-- failures that count was picked (a redriven task begins anew).
SELECT claim.lane, claim.task, claim.number, claim.holder, claim.failures, claim.crashes, claim.releases,
       task.options, COALESCE(first.picked_at, claim.picked_at) AS first_picked_at
  FROM {claims_asked_for}
 CROSS JOIN LATERAL (
       SELECT task.options
         FROM task
        WHERE task.lane = asked.lane
          AND task.id = asked.task
        LIMIT 1) AS task
  LEFT JOIN LATERAL (
       SELECT attempt.picked_at
         FROM attempt
        WHERE attempt.lane = asked.lane
          AND attempt.task = asked.task
          AND attempt.outcome = 2
          AND claim.failures > 0
        ORDER BY attempt.number DESC
       OFFSET GREATEST(claim.failures - 1, 0)
        LIMIT 1) AS first ON true;

-- name: read_ends
-- How attempts ended that are not with their holder any more, and whether their task is a dead letter since.
-- Gives: no holder where the server ended the attempt in its place, which the detail says in its first bytes.
SELECT attempt.task, attempt.number, attempt.outcome, holder.tenant, holder.name,
       dead.number IS NOT NULL AS is_dead
  FROM unnest(@lanes::int[], @tasks::uuid[], @numbers::int[]) AS asked (lane, task, number)
 CROSS JOIN LATERAL (
       SELECT attempt.task, attempt.number, attempt.outcome,
              CASE WHEN substr(attempt.detail, 1, 14) = '{"by":"server"'::bytea THEN NULL ELSE attempt.holder END AS holder
         FROM attempt
        WHERE attempt.lane = asked.lane
          AND attempt.task = asked.task
          AND attempt.number = asked.number
        LIMIT 1) AS attempt
  LEFT JOIN LATERAL (
       SELECT holder.tenant, holder.name
         FROM holder
        WHERE holder.id = attempt.holder
        LIMIT 1) AS holder ON true
  LEFT JOIN LATERAL (
       SELECT dead.number
         FROM dead
        WHERE dead.lane = asked.lane
          AND dead.task = asked.task
          AND dead.number = asked.number
        LIMIT 1) AS dead ON true;
