-- What must hold of the data path, read in one snapshot; nothing here writes.

-- name: begin
-- The first message of the transaction, sent as one simple query.
-- Locks: the tables, only so that no partition is dropped.  Taken before the first read, which takes the snapshot: a
--        partition that was replaced after it would hold rows that the snapshot does not see.
-- Time:  no statement of the transaction takes longer than the limit.
SET LOCAL statement_timeout = :'limit';
SET LOCAL lock_timeout = '10s';
LOCK TABLE task, attempt, due, claim, held, dead, fire IN ACCESS SHARE MODE;

-- name: allow_all_plans
-- Our sessions leave the planner only index plans, and a deep check reads whole tables.  Sent as one simple query.
SET LOCAL enable_seqscan = on;
SET LOCAL enable_bitmapscan = on;
SET LOCAL enable_hashjoin = on;
SET LOCAL enable_mergejoin = on;
SET LOCAL plan_cache_mode = force_custom_plan;
SET LOCAL work_mem = '64MB';

-- fragment: judged
-- How many tasks break which rule.  `found` has one row for each place in which a task is found; they are grouped by
-- task, so that no rule needs a join.  Places: 0 task, 1 due, 2 claim, 3 held, 4 dead, 5 attempt.  `flag` says of a
-- task whether its history may be gone, and of an attempt whether it is final.
facts AS (
    SELECT lane, task,
           count(*) FILTER (WHERE place = 0) AS asked,
           bool_or(flag) FILTER (WHERE place = 0) AS may_be_retired,
           count(*) FILTER (WHERE place BETWEEN 1 AND 4) AS open,
           max(number) FILTER (WHERE place BETWEEN 1 AND 3) AS next_number,
           max(number) FILTER (WHERE place = 4) AS dead_number,
           count(*) FILTER (WHERE place = 5) AS attempts,
           COALESCE(max(number) FILTER (WHERE place = 5), 0) AS last_number,
           count(*) FILTER (WHERE place = 5 AND flag) AS finals,
           min(number) FILTER (WHERE place = 5 AND flag) AS final_number
      FROM found
     GROUP BY lane, task
)
SELECT rule, count(*) AS tasks, min(task::text) AS example
  FROM facts
 CROSS JOIN LATERAL (VALUES
       ('two_places',    open > 1),
       ('open_and_over', open > 0 AND finals > 0),
       ('nowhere',       asked > 0 AND open = 0 AND finals = 0 AND NOT may_be_retired),
       ('after_final',   last_number > final_number),
       ('numbering',     attempts <> last_number),
       ('next_number',   next_number <> last_number + 1 OR dead_number <> last_number),
       ('no_task',       asked = 0 AND open > 0),
       ('wrong_lane',    ('x' || right(replace(task::text, '-', ''), 8))::bit(32)::int <> lane)) AS checked (rule, broken)
 WHERE broken
 GROUP BY rule

-- name: judge_all
-- Time:  reads every row of the six tables once.
WITH found AS (
    SELECT lane, id AS task, 0 AS place, NULL::int AS number, id < @kept_from::uuid AS flag FROM task
     UNION ALL
    SELECT COALESCE(home, lane), task, 1, number, NULL FROM due WHERE lane >= 256
     UNION ALL
    SELECT lane, task, 2, number, NULL FROM claim
     UNION ALL
    SELECT lane, task, 3, number, NULL FROM held
     UNION ALL
    SELECT lane, task, 4, number, NULL FROM dead
     UNION ALL
    SELECT lane, task, 5, number, final FROM attempt
),
{judged};

-- fragment: picked
unnest(@lanes::int[], @tasks::uuid[]) AS picked (lane, task)

-- name: judge_some
-- The same of some tasks, each given once.
-- Index: the primary key of each table; due_task for later wakes.
WITH found AS (
    SELECT task.lane, task.id AS task, 0 AS place, NULL::int AS number, task.id < @kept_from::uuid AS flag
      FROM {picked}
      JOIN task
        ON task.lane = picked.lane
       AND task.id = picked.task
     UNION ALL
    SELECT due.lane, due.task, 1, due.number, NULL
      FROM {picked}
      JOIN due
        ON due.lane = picked.lane
       AND due.wake = picked.task
       AND due.task = picked.task
     UNION ALL
    SELECT COALESCE(due.home, due.lane), due.task, 1, due.number, NULL
      FROM {picked}
      JOIN due
        ON COALESCE(due.home, due.lane) = picked.lane
       AND due.task = picked.task
       AND due.wake <> due.task
     UNION ALL
    SELECT claim.lane, claim.task, 2, claim.number, NULL
      FROM {picked}
      JOIN claim
        ON claim.lane = picked.lane
       AND claim.task = picked.task
     UNION ALL
    SELECT held.lane, held.task, 3, held.number, NULL
      FROM {picked}
      JOIN held
        ON held.lane = picked.lane
       AND held.task = picked.task
     UNION ALL
    SELECT dead.lane, dead.task, 4, dead.number, NULL
      FROM {picked}
      JOIN dead
        ON dead.lane = picked.lane
       AND dead.task = picked.task
     UNION ALL
    SELECT attempt.lane, attempt.task, 5, attempt.number, attempt.final
      FROM {picked}
      JOIN attempt
        ON attempt.lane = picked.lane
       AND attempt.task = picked.task
),
{judged};

-- name: pick
-- Tasks to look at: of some lanes those around now and the first that wait, and
-- some of what runs, is held or is dead.
-- Index: the primary keys, which give the order, so LIMIT stops the scans.
WITH some_lane AS MATERIALIZED (
    SELECT id
      FROM lane
     ORDER BY random()
     LIMIT @lanes::int
)
SELECT latest.lane, latest.id AS task
  FROM some_lane
 CROSS JOIN LATERAL (
       SELECT lane, id
         FROM task
        WHERE task.lane = some_lane.id
          AND task.id < @until::uuid
        ORDER BY id DESC
        LIMIT @each::int) AS latest
 UNION
SELECT coming.lane, coming.id
  FROM some_lane
 CROSS JOIN LATERAL (
       SELECT lane, id
         FROM task
        WHERE task.lane = some_lane.id
          AND task.id >= @until::uuid
        ORDER BY id
        LIMIT @each::int) AS coming
 UNION
SELECT first.lane, first.task
  FROM some_lane
 CROSS JOIN LATERAL (
       SELECT COALESCE(home, lane) AS lane, task
         FROM due
        WHERE due.lane = some_lane.id
        ORDER BY wake
        LIMIT @each::int) AS first
 UNION
(SELECT lane, task FROM claim LIMIT @most::int)
 UNION
(SELECT lane, task FROM held LIMIT @most::int)
 UNION
(SELECT lane, task FROM dead ORDER BY died_at DESC LIMIT @most::int)

-- name: count_lanes
-- How many lanes there are, up to @most, and the time.
SELECT count(*) AS lanes, to_ms(clock_timestamp()) AS now_ms
  FROM (SELECT FROM lane LIMIT @most::int) AS some_lane

-- name: judge_claims
-- A claim's holder is there; one that ended is not left with it for longer than
-- every node looks back for such claims.
SELECT CASE WHEN holder.id IS NULL THEN 'no_holder' ELSE 'left_behind' END AS rule,
       count(*) AS tasks, min(claimed.task::text) AS example
  FROM (SELECT task, holder FROM claim LIMIT @most::int) AS claimed
  LEFT JOIN holder
    ON holder.id = claimed.holder
 WHERE holder.id IS NULL
    OR holder.ended_at < clock_timestamp() - interval '15 minutes'
 GROUP BY 1

-- name: judge_lanes
-- The lane of a row exists: nobody feeds one that does not.  Of some rows of each table, or of all; a task counts once.
-- The lanes below 256 are the shards' own and have no row.
SELECT 'no_lane' AS rule, count(DISTINCT found.task) AS tasks, min(found.task::text) AS example
  FROM ((SELECT lane, id AS task FROM task LIMIT @most::int)
         UNION ALL
        (SELECT lane, task FROM due WHERE lane >= 256 LIMIT @most::int)
         UNION ALL
        (SELECT lane, task FROM claim LIMIT @most::int)
         UNION ALL
        (SELECT lane, task FROM held LIMIT @most::int)
         UNION ALL
        (SELECT lane, task FROM dead LIMIT @most::int)) AS found
 WHERE NOT EXISTS (SELECT FROM lane WHERE lane.id = found.lane)
HAVING count(*) > 0
 UNION ALL
SELECT 'no_lane_to_fire', count(*), min(found.name)
  FROM (SELECT name, task_lane FROM schedule LIMIT @most::int) AS found
 WHERE NOT EXISTS (SELECT FROM lane WHERE lane.id = found.task_lane)
HAVING count(*) > 0
 UNION ALL
SELECT 'no_tenant', count(*), min(found.id::text)
  FROM (SELECT id, tenant FROM lane LIMIT @most::int) AS found
 WHERE NOT EXISTS (SELECT FROM tenant WHERE tenant.id = found.tenant)
HAVING count(*) > 0

-- name: judge_schedules
-- A schedule that is not paused and has not ended has its row in due; of some, or of all.
SELECT CASE WHEN waiting.wake IS NULL THEN 'no_turn' ELSE 'paused_turn' END AS rule,
       count(*) AS tasks, min(looked_at.name) AS example
  FROM (SELECT schedule.id, schedule.name, schedule.is_paused, state.lane, state.wake
          FROM schedule
          JOIN schedule_state AS state
            ON state.schedule = schedule.id
         WHERE state.wake IS NOT NULL
         LIMIT @most::int) AS looked_at
  LEFT JOIN due AS waiting
    ON waiting.lane = looked_at.lane
   AND waiting.wake = looked_at.wake
 WHERE waiting.wake IS NULL
    OR looked_at.is_paused
 GROUP BY 1

-- name: judge_turns
-- A row in a schedule lane is the turn that its schedule knows of, and so its only one.
SELECT 'turn_twice' AS rule, count(*) AS tasks, min(turn.task::text) AS example
  FROM (SELECT due.wake, due.task,
               ('x' || right(replace(due.task::text, '-', ''), 16))::bit(64)::bigint AS schedule
          FROM due
         WHERE due.lane < 256
         LIMIT @most::int) AS turn
  LEFT JOIN schedule_state AS state
    ON state.schedule = turn.schedule
   AND state.wake = turn.wake
 WHERE state.schedule IS NULL
HAVING count(*) > 0

-- name: judge_keys
-- An idempotency key stands for a task that is there, is its tenant's, and carries this very key.
SELECT 'wrong_key' AS rule, count(*) AS tasks, min(named.task::text) AS example
  FROM (SELECT tenant, key, task, ('x' || right(replace(task::text, '-', ''), 8))::bit(32)::int AS lane
          FROM idempotency_key
         WHERE expires_at > clock_timestamp()
         ORDER BY expires_at DESC
         LIMIT @most::int) AS named
  LEFT JOIN lane
    ON lane.id = named.lane
  LEFT JOIN task
    ON task.lane = named.lane
   AND task.id = named.task
 WHERE named.task >= @kept_from::uuid
   AND (task.id IS NULL
        OR lane.tenant IS DISTINCT FROM named.tenant
        OR convert_from(task.options, 'UTF8')::json ->> 'idempotency_key' <> named.key)
HAVING count(*) > 0

-- name: judge_keys_twice
-- One task for each key: none was made beside the one that the key stands for, and
-- never two within the second that every key is kept at least.
-- Time:  reads every task that carries a key.
WITH keyed AS (
    SELECT lane.tenant, convert_from(task.options, 'UTF8')::json ->> 'idempotency_key' AS key, task.id, task.created_at
      FROM task
      JOIN lane
        ON lane.id = task.lane
     WHERE position('"idempotency_key"'::bytea IN task.options) > 0
),
compared AS (
    SELECT keyed.id, keyed.created_at, named.task AS named, named.expires_at,
           lag(keyed.created_at) OVER by_key AS made_before,
           max(keyed.created_at) FILTER (WHERE keyed.id = named.task) OVER whole_key AS named_at
      FROM keyed
      LEFT JOIN idempotency_key AS named
        ON named.tenant = keyed.tenant
       AND named.key = keyed.key
     WHERE keyed.key IS NOT NULL
    WINDOW by_key AS (PARTITION BY keyed.tenant, keyed.key ORDER BY keyed.created_at, keyed.id),
           whole_key AS (PARTITION BY keyed.tenant, keyed.key)
)
SELECT 'key_twice' AS rule, count(*) AS tasks, min(id::text) AS example
  FROM compared
 WHERE created_at < made_before + interval '0.9 seconds'
    OR (expires_at > clock_timestamp() AND created_at > named_at)
HAVING count(*) > 0
