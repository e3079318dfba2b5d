-- Partitions are named by :"partition", and the oldest of the same table by :"oldest".

-- name: read_open
-- Every task that is open and has an id below @before.
-- Time:  reads each place to its end, all in one snapshot; a first wake is the task's id.
SELECT lane, task
  FROM claim
 WHERE task < @before::uuid
 UNION ALL
SELECT lane, task
  FROM held
 WHERE task < @before::uuid
 UNION ALL
SELECT lane, task
  FROM dead
 WHERE task < @before::uuid
 UNION ALL
SELECT COALESCE(home, lane), task
  FROM due
 WHERE lane >= 256
   AND wake <> task
   AND task < @before::uuid
 UNION ALL
SELECT lane, task
  FROM due
 WHERE wake = task
   AND wake < @before::uuid;

-- name: wait_shortly
-- Time:  no lock of the transaction is waited for longer than this: others wait behind it.
SET LOCAL lock_timeout = '200ms';

-- name: detach
-- Sent as one simple query.
-- Locks: the table and both partitions, until the commit.
ALTER TABLE :"table" DETACH PARTITION :"partition";
ALTER TABLE :"table" DETACH PARTITION :"oldest";

-- name: drop
-- Locks: the partition; its table too, if it is still part of it.
DROP TABLE :"partition";

-- name: move_open
-- Take the rows of the tasks that are open over to the oldest partition.  :"key" is the column with the task's id.
-- Index: the primary key of the partition, (lane, :"key", …).
INSERT INTO :"oldest"
SELECT old.*
  FROM unnest(@lanes::int[], @tasks::uuid[]) AS kept (lane, task)
  JOIN :"partition" AS old
    ON old.lane = kept.lane
   AND old.:"key" = kept.task;

-- name: move_all
-- Whatever is in due is open.
INSERT INTO :"oldest"
SELECT *
  FROM :"partition";

-- name: trim_oldest
-- Drop the rows of tasks that have been over since before @before.  :"key" is the column with the task's id.
-- The lanes and tasks are those that were open when the partition reached to @end.
-- Index: attempt_pkey (lane, task, number).
-- Copies: names the end that the partition had, so what was moved into it later stays; a task that is over never opens
--         again.
DELETE FROM :"oldest" AS old
 WHERE old.:"key" < @end::uuid
   AND (old.lane, old.:"key") NOT IN (SELECT * FROM unnest(@lanes::int[], @tasks::uuid[]))
   AND NOT EXISTS (
       SELECT
         FROM attempt
        WHERE attempt.lane = old.lane
          AND attempt.task = old.:"key"
          AND attempt.completed_at >= @before::timestamptz);

-- name: trim_fires
-- Copies: names times; the same rows are too old at any later time.
DELETE FROM :"oldest"
 WHERE at < @before::timestamptz;

-- name: is_frozen
SELECT obj_description(to_regclass(@partition::text), 'pg_class') IS NOT DISTINCT FROM 'frozen' AS is_frozen;

-- name: freeze
-- Time:  reads the partition once; runs outside a transaction.
VACUUM (FREEZE, ANALYZE) :"partition";

-- name: note_frozen
-- Copies: a frozen partition stays frozen.
COMMENT ON TABLE :"partition" IS 'frozen';

-- name: retire_listed
-- Drop the places in lists of tasks that are gone with their partition.
-- Copies: names ids; the same rows are too old at any later time.
DELETE FROM listed
 WHERE task < @before::uuid;

-- name: retire_holders
-- Drop holders that ended long ago and hold nothing.
-- Index: holder_ended; claim_holder (holder, picked_at).
-- Copies: an ended holder gets no claims.
DELETE FROM holder
 WHERE ended_at < @before::timestamptz
   AND NOT EXISTS (SELECT FROM claim WHERE claim.holder = holder.id);

-- name: retire_rescheduled
-- Drop the new times of tasks that are gone with their partition.  A newer task cannot be gone, so only what is old is
-- looked up.
-- Index: task_pkey (lane, id).
-- Copies: a task that is gone stays gone.
WITH gone AS (
    DELETE FROM rescheduled
     WHERE task < @before::uuid
       AND NOT EXISTS (
           SELECT
             FROM task
            WHERE task.lane = rescheduled.lane
              AND task.id = rescheduled.task)
 RETURNING 1
)
SELECT count(*) AS count
  FROM gone;

-- name: read_old_dead
-- Dead letters that died before, the oldest first.
-- Index: dead_died_at.
SELECT task
  FROM dead
 WHERE died_at < @before::timestamptz
 ORDER BY died_at
 LIMIT @batch::int;
