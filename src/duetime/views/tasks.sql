-- name: read_tasks
-- Whole tasks with their states and last attempts: all their tables in one snapshot.
-- Index: the primary key of each, by (lane, task); due_task (home lane, task) only for
--        tasks that are nowhere else, because it has to ask every partition;
--        holder_pkey for names.  The LIMITs keep the look-ups by key, whatever the
--        planner thinks of the tables.
-- Time:  a wake from `edge` on lies in the future.
-- Gives: the tasks in the order asked for, as far as their payloads, results, details, options
--        and labels fit into @bytes; then rows with `is_cut`; no row for no task.  Of each the last
--        attempts, as long as less than @attempt_bytes of details stand before them.
WITH moment AS MATERIALIZED (
    SELECT at, mint_wake(floor(extract(epoch FROM at) * 1000)::bigint + 1, 0, 0) AS edge
      FROM (SELECT COALESCE(@now::timestamptz, clock_timestamp()) AS at) AS clock
),
found AS MATERIALIZED (
    SELECT wanted.place, task.lane, task.id, task.type, task.payload, task.options, task.labels,
           COALESCE(moved.run_at, task.run_at) AS run_at, CASE WHEN moved.run_at IS NOT NULL THEN task.run_at END AS first_run_at,
           task.expires_at, task.created_at,
           claim.task IS NOT NULL AS is_running, claim.number AS claim_number, claim.picked_at, claim.holder,
           held.reason AS held_reason, held.held_at,
           dead.task IS NOT NULL AS is_dead, dead.reason AS dead_reason, dead.died_at,
           COALESCE(first.wake, later.wake, held.wake) AS wake,
           COALESCE(first.number, later.number, held.number, claim.number, dead.number, last.number) AS number,
           COALESCE(first.failures, later.failures, held.failures, claim.failures) AS failures,
           COALESCE(first.crashes, later.crashes, held.crashes, claim.crashes) AS crashes,
           COALESCE(first.failures + first.crashes, later.failures + later.crashes) AS troubles,
           COALESCE(first.releases, later.releases, held.releases, claim.releases) AS releases,
           last.final AS is_over, last.outcome, last.completed_at, last.result,
           octet_length(task.payload) + COALESCE(octet_length(task.options), 0) + COALESCE(octet_length(task.labels::text), 0)
           + LEAST(COALESCE(kept.detail_bytes, 0), @attempt_bytes::bigint) + COALESCE(octet_length(last.result), 0) AS bytes,
           COALESCE(kept.detail_bytes, 0) > @attempt_bytes AS has_more_attempts
      FROM unnest(@lanes::int[], @ids::uuid[]) WITH ORDINALITY AS wanted (lane, id, place)
     {task_wanted}
      {time_moved}
      {places_of_task}
      LEFT JOIN LATERAL (
           SELECT sum(octet_length(recent.detail)) AS detail_bytes
             FROM (SELECT detail
                     FROM attempt
                    WHERE attempt.lane = wanted.lane
                      AND attempt.task = wanted.id
                    ORDER BY number DESC
                    LIMIT @attempts::int) AS recent) AS kept
        ON true
),
weighed AS MATERIALIZED (
    SELECT found.*,
           sum(bytes) OVER (ORDER BY place) > @bytes::bigint AND row_number() OVER (ORDER BY place) > 1 AS is_cut
      FROM found
)
SELECT weighed.place, weighed.lane, weighed.id, weighed.is_cut, moment.at AS now,
       {state_of_task},
       weighed.type, CASE WHEN NOT weighed.is_cut THEN weighed.options END AS options,
       CASE WHEN NOT weighed.is_cut THEN weighed.labels END AS labels, weighed.run_at, weighed.first_run_at, weighed.expires_at, weighed.created_at,
       CASE WHEN NOT weighed.is_cut THEN weighed.payload END AS payload,
       CASE WHEN NOT weighed.is_cut THEN weighed.result END AS result,
       weighed.wake, weighed.number, weighed.failures, weighed.crashes, weighed.releases, weighed.completed_at, weighed.dead_reason,
       weighed.died_at, weighed.held_at, weighed.claim_number, weighed.picked_at, holder.name AS worker,
       begun.is_started, begun.at AS started_at,
       CASE WHEN weighed.is_cut THEN NULL
            WHEN weighed.has_more_attempts THEN ARRAY(
           SELECT ROW (recent.number, recent.outcome, former.name, recent.picked_at, recent.started_at,
                       recent.completed_at, recent.detail)
             FROM (SELECT counted.*, sum(octet_length(counted.detail)) OVER (
                              ORDER BY counted.number DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
                     FROM (SELECT *
                             FROM attempt
                            WHERE attempt.lane = weighed.lane
                              AND attempt.task = weighed.id
                            ORDER BY attempt.number DESC
                            LIMIT @attempts) AS counted) AS recent
             LEFT JOIN LATERAL (
                  SELECT name
                    FROM holder
                   WHERE holder.id = recent.holder
                   LIMIT 1) AS former ON true
            WHERE COALESCE(recent.bytes_before, 0) < @attempt_bytes
            ORDER BY recent.number DESC)
            ELSE ARRAY(
           SELECT ROW (attempt.number, attempt.outcome, former.name, attempt.picked_at, attempt.started_at,
                       attempt.completed_at, attempt.detail)
             FROM attempt
             LEFT JOIN LATERAL (
                  SELECT name
                    FROM holder
                   WHERE holder.id = attempt.holder
                   LIMIT 1) AS former ON true
            WHERE attempt.lane = weighed.lane
              AND attempt.task = weighed.id
            ORDER BY attempt.number DESC
            LIMIT @attempts) END AS attempts
  FROM moment, weighed
  LEFT JOIN LATERAL (
       SELECT *
         FROM holder
        WHERE holder.id = weighed.holder
        LIMIT 1) AS holder ON true
  LEFT JOIN LATERAL (  -- what the holder's beats said of it
       SELECT true AS is_started, to_timestamp(said.since_us / 1e6) AS at
         FROM unnest(holder.running, holder.running_numbers, holder.running_us) AS said (task, number, since_us)
        WHERE said.task = weighed.id
          AND said.number = weighed.claim_number
        LIMIT 1) AS begun ON true
 ORDER BY weighed.place;

-- name: read_attempts
-- A page of a task's attempts in order, the running one last.
-- Index: attempt_pkey (lane, task, number), claim_pkey (lane, task), holder_pkey for names; the LIMITs keep the look-ups
--        by key, whatever the planner thinks of the tables.
-- Gives: as many as fit (see pages.py).
WITH page AS MATERIALIZED (
    SELECT over.*
      FROM (SELECT number, outcome, holder, picked_at, started_at, completed_at, detail
              FROM attempt
             WHERE attempt.lane = @lane::int
               AND attempt.task = @task::uuid
               AND attempt.number > @after::int
               AND attempt.picked_at IS NOT NULL  -- the end of a task that was not running is none
             ORDER BY attempt.number
             LIMIT @limit::int) AS over
     UNION ALL
    SELECT running.*
      FROM (SELECT claim.number, NULL::smallint, claim.holder, claim.picked_at, begun.at, NULL::timestamptz, NULL::bytea
              FROM claim
              LEFT JOIN LATERAL (
                   SELECT to_timestamp(said.since_us / 1e6) AS at
                     FROM holder,
                          unnest(holder.running, holder.running_numbers, holder.running_us) AS said (task, number, since_us)
                    WHERE holder.id = claim.holder
                      AND said.task = @task::uuid
                      AND said.number = claim.number
                    LIMIT 1) AS begun ON true
             WHERE claim.lane = @lane::int
               AND claim.task = @task::uuid
               AND claim.number > @after::int
             LIMIT 1) AS running
),
weighed AS (
    SELECT page.*, count(*) OVER () AS found,
           sum(octet_length(detail)) OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM page
)
SELECT weighed.number, weighed.outcome, former.name AS worker, weighed.picked_at, weighed.started_at,
       weighed.completed_at, weighed.detail, weighed.found
  FROM weighed
  LEFT JOIN LATERAL (
       SELECT name
         FROM holder
        WHERE holder.id = weighed.holder
        LIMIT 1) AS former ON true
 WHERE COALESCE(weighed.bytes_before, 0) < @bytes::bigint
 ORDER BY weighed.number;

-- name: read_types
-- The types of tasks, whatever their state.
-- Index: task_pkey (lane, id); the LIMIT keeps the look-up by key, whatever the planner thinks of the table.
SELECT wanted.id, task.type
  FROM unnest(@lanes::int[], @ids::uuid[]) AS wanted (lane, id)
 CROSS JOIN LATERAL (
       SELECT type
         FROM task
        WHERE task.lane = wanted.lane
          AND task.id = wanted.id
        LIMIT 1) AS task;
