-- name: read_ids
-- Copies: uses up numbers.
SELECT nextval(pg_get_serial_sequence('schedule', 'id')) AS id
  FROM generate_series(1, @count::int);

-- name: create
-- Store schedules that are new, each with its row in due, from the first on as far as the tenant may have them.
-- Locks: the tenant, so that what it has is counted one after the other.
-- Gives: the ids of those whose names were free, and in a row of its own how many it had.
WITH owner AS MATERIALIZED (
    SELECT schedules
      FROM tenant
     WHERE id = @tenant::int
       FOR NO KEY UPDATE
),
{fresh_or_later_ids},
new AS (
    INSERT INTO schedule (id, tenant, name, definition, calendars, task_lane, task_type, task_payload, task_options,
                          task_labels, expires_after, origin, source, is_paused, note, created_at, updated_at)
OVERRIDING SYSTEM VALUE
    SELECT asked.id, @tenant::int, asked.name, asked.definition, COALESCE(string_to_array(NULLIF(asked.calendars, ''), '|'), '{}'),
           asked.task_lane, asked.task_type, asked.task_payload, asked.task_options, asked.task_labels::jsonb,
           asked.expires_after, asked.origin, asked.source, asked.is_paused, asked.note, fresh.at, fresh.at
      FROM owner, fresh,
           unnest(@ids::bigint[], @names::text[], @definitions::bytea[], @calendars::text[], @task_lanes::int[],
                  @task_types::text[], @task_payloads::bytea[], @task_options::bytea[], @task_labels::text[],
                  @expires_afters::float8[], @origins::text[], @sources::text[], @are_paused::boolean[],
                  @notes::text[]) WITH ORDINALITY
               AS asked (id, name, definition, calendars, task_lane, task_type, task_payload, task_options,
                         task_labels, expires_after, origin, source, is_paused, note, place)
     WHERE @most::bigint IS NULL
        OR owner.schedules + asked.place <= @most::bigint
        ON CONFLICT (tenant, name) DO NOTHING
    RETURNING id
),
state AS (
    INSERT INTO schedule_state (schedule, lane, wake, next_ms)
    SELECT asked.id, @lane::int, asked.wake, asked.next_ms
      FROM unnest(@ids::bigint[], @wakes::uuid[], @next_times::bigint[]) AS asked (id, wake, next_ms)
     WHERE (asked.id IN (SELECT id FROM new)) IS TRUE
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT @lane::int, asked.wake, lpad(to_hex(asked.id), 32, '0')::uuid, 1
      FROM unnest(@ids::bigint[], @wakes::uuid[]) AS asked (id, wake)
     WHERE (asked.id IN (SELECT id FROM new)) IS TRUE
       AND asked.wake IS NOT NULL
),
counted AS (
    UPDATE tenant
       SET schedules = schedules + (SELECT count(*) FROM new)
     WHERE id = @tenant::int
       AND EXISTS (SELECT FROM new)
)
SELECT id, NULL::int AS held FROM new
 UNION ALL
SELECT NULL, schedules FROM owner;

-- name: recount
-- What the tenant has, counted anew; gives it if it was counted wrong: an older node may have made some meanwhile.
-- Locks: the tenant.
-- Index: schedule (tenant, name).
UPDATE tenant
   SET schedules = counted.schedules
  FROM (SELECT count(*) AS schedules FROM schedule WHERE tenant = @tenant::int) AS counted
 WHERE tenant.id = @tenant::int
   AND tenant.schedules <> counted.schedules
RETURNING tenant.schedules;

-- name: lock_tenant
-- Before the schedule is locked, as whoever makes schedules does.
SELECT id
  FROM tenant
 WHERE id = @tenant::int
   FOR NO KEY UPDATE;

-- name: find
-- Schedules by name, as they are stored.
SELECT schedule.*, state.lane, state.wake, state.next_ms, state.fired, state.skipped, state.missed, state.buffered,
       state.recent, state.buffer, state.last_skip_ms, state.last_skip_at, state.last_skip
  FROM schedule
  JOIN schedule_state AS state
    ON state.schedule = ANY (ARRAY[schedule.id])  -- see claim.sql
 WHERE schedule.tenant = @tenant::int
   AND schedule.name = ANY (@names::text[]);

-- name: list
-- A page of a tenant's schedules, by name; @types and @task_lanes are for a key that is confined.
-- Index: schedule (tenant, name).
-- Gives: as many as fit (see pages.py).
SELECT weighed.*
  FROM (SELECT page.*, count(*) OVER () AS found,
               sum(octet_length(definition) + octet_length(task_payload) + COALESCE(octet_length(task_options), 0)
                   + COALESCE(octet_length(task_labels::text), 0) + COALESCE(octet_length(recent), 0)
                   + COALESCE(octet_length(buffer), 0)) OVER (
                   ORDER BY name ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
          FROM (SELECT schedule.*, state.lane, state.wake, state.next_ms, state.fired, state.skipped, state.missed,
                       state.buffered, state.recent, state.buffer, state.last_skip_ms, state.last_skip_at, state.last_skip
                  FROM schedule
                  JOIN schedule_state AS state
                    ON state.schedule = ANY (ARRAY[schedule.id])  -- see claim.sql
                 WHERE schedule.tenant = @tenant::int
                   AND schedule.name > @after::text
                   AND (@prefix::text IS NULL OR starts_with(schedule.name, @prefix::text))
                   AND (@origin::text IS NULL OR schedule.origin = @origin::text)
                   AND (@source::text IS NULL OR schedule.source = @source::text)
                   AND (@types::text[] IS NULL OR schedule.task_type LIKE ANY (@types))
                   AND (@task_lanes::int[] IS NULL OR schedule.task_lane = ANY (@task_lanes))
                   AND (@is_paused::boolean IS NULL OR schedule.is_paused = @is_paused::boolean)
                   AND (@has_ended::boolean IS NULL
                        OR (NOT schedule.is_paused AND state.wake IS NULL) = @has_ended::boolean)
                 ORDER BY schedule.name
                 LIMIT @limit::int) AS page) AS weighed
 WHERE COALESCE(bytes_before, 0) < @bytes::bigint
 ORDER BY name;

-- name: lock
-- One schedule, for a change: nobody fires it until the transaction ends.
SELECT schedule.*, state.lane, state.wake, state.next_ms, state.fired, state.skipped, state.missed, state.buffered,
       state.recent, state.buffer, state.last_skip_ms, state.last_skip_at, state.last_skip,
       to_ms(clock_timestamp()) AS now_ms
  FROM schedule
  JOIN schedule_state AS state
    ON state.schedule = ANY (ARRAY[schedule.id])  -- see claim.sql
 WHERE schedule.tenant = @tenant::int
   AND schedule.name = @name::text
   FOR UPDATE;

-- name: unplan
-- Tasks that were made ahead of their time and are not due yet were never there.
-- Gives: how many.
WITH gone AS (
    DELETE FROM due
     USING unnest(@lanes::int[], @tasks::uuid[]) AS asked (lane, task)
     WHERE due.lane = ANY (ARRAY[asked.lane])
       AND due.wake = asked.task
       AND due.task = asked.task
 RETURNING due.lane, due.task
),
unmade AS (
    DELETE FROM task
     USING gone
     WHERE task.lane = ANY (ARRAY[gone.lane])
       AND task.id = gone.task
),
unnoted AS (
    DELETE FROM fire
     WHERE fire.schedule = @schedule::bigint
       AND fire.moment >= @since::uuid
       AND fire.task IN (SELECT task FROM gone)
)
SELECT task
  FROM gone;

-- name: change
UPDATE schedule
   SET version = version + @step::int, definition = @definition, calendars = @calendars::text[],
       task_lane = @task_lane, task_type = @task_type, task_payload = @task_payload, task_options = @task_options,
       task_labels = @task_labels::text::jsonb, expires_after = @expires_after::float8, origin = @origin,
       source = @source, is_paused = @is_paused, note = @note, updated_at = clock_timestamp()
 WHERE id = @schedule::bigint;

-- name: move
-- The schedule's row in due, from where it was to where it is to be; the caller holds the lock.
WITH gone AS (
    DELETE FROM due
     WHERE lane = @lane::int
       AND wake = @wake::uuid
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT @lane::int, @next_wake::uuid, lpad(to_hex(@schedule::bigint), 32, '0')::uuid, 1
     WHERE @next_wake::uuid IS NOT NULL
)
UPDATE schedule_state
   SET wake = @next_wake::uuid, next_ms = @next_ms::bigint, fired = GREATEST(0, fired - @unfired::int),
       recent = @recent::bytea, buffer = @buffer::bytea
 WHERE schedule = @schedule::bigint;

-- name: delete
WITH gone AS (
    DELETE FROM due
     WHERE lane = @lane::int
       AND wake = @wake::uuid
),
state AS (
    DELETE FROM schedule_state
     WHERE schedule = @schedule::bigint
),
filling AS (
    DELETE FROM backfill
     WHERE schedule = @schedule::bigint
),
unmade AS (
    DELETE FROM schedule
     WHERE id = @schedule::bigint
 RETURNING tenant
)
UPDATE tenant
   SET schedules = GREATEST(0, schedules - 1)
  FROM unmade
 WHERE tenant.id = unmade.tenant;

-- name: read_tasks
-- The tasks that a schedule made, the latest first.
SELECT fire.task
  FROM fire
 WHERE fire.schedule = @schedule::bigint
   AND fire.task IS NOT NULL
 ORDER BY fire.moment DESC
 LIMIT @most::int;

-- name: read_runs
-- What became of a schedule's times, the latest first.
SELECT fire.moment, fire.task, fire.outcome, fire.reason, fire.at
  FROM fire
 WHERE fire.schedule = @schedule::bigint
   AND fire.moment < @before::uuid
 ORDER BY fire.moment DESC
 LIMIT @limit::int;

-- name: read_run
SELECT fire.task
  FROM fire
 WHERE fire.schedule = @schedule::bigint
   AND fire.moment = @moment::uuid
   AND fire.task IS NOT NULL;

-- name: read_shard
SELECT shard, schedules
  FROM tenant
 WHERE id = @tenant::int;

-- name: read_shards
SELECT DISTINCT shard
  FROM tenant;

-- name: of_calendar
SELECT name
  FROM schedule
 WHERE tenant = @tenant::int
   AND name > @after::text
   AND @calendar::text = ANY (calendars)
 ORDER BY name
 LIMIT @limit::int;

-- name: read_calendar_heads
-- The calendars of a tenant without their entries, whose length is known without reading them.
-- Index: calendar_pkey.
SELECT name, version, octet_length(entries) AS size
  FROM calendar
 WHERE tenant = @tenant::int
 ORDER BY name;

-- name: read_calendars
-- Index: calendar_pkey.
SELECT name, version, entries, updated_at
  FROM calendar
 WHERE tenant = @tenant::int
   AND name = ANY (@names::text[])
 ORDER BY name;

-- name: list_calendars
-- A page of a tenant's calendars, by name.
-- Index: calendar_pkey.
-- Gives: as many as fit (see pages.py).
SELECT name, version, entries, updated_at, found
  FROM (SELECT page.*, count(*) OVER () AS found,
               sum(octet_length(entries)) OVER (
                   ORDER BY name ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
          FROM (SELECT *
                  FROM calendar
                 WHERE tenant = @tenant::int
                   AND name > @after::text
                 ORDER BY name
                 LIMIT @limit::int) AS page) AS weighed
 WHERE COALESCE(bytes_before, 0) < @bytes::bigint
 ORDER BY name;

-- name: weigh_calendars
-- What the tenant has beside the one of this name, and what that one has.
-- Index: calendar_pkey.
SELECT count(*) FILTER (WHERE name <> @name::text) AS others,
       COALESCE(sum(octet_length(entries)) FILTER (WHERE name <> @name::text), 0)::bigint AS bytes_of_others,
       max(octet_length(entries)) FILTER (WHERE name = @name::text) AS bytes
  FROM calendar
 WHERE tenant = @tenant::int;

-- name: put_calendar
INSERT INTO calendar AS stored (tenant, name, entries)
VALUES (@tenant::int, @name, @entries)
    ON CONFLICT (tenant, name) DO UPDATE
   SET entries = excluded.entries, version = stored.version + 1, updated_at = clock_timestamp()
 WHERE stored.entries <> excluded.entries
RETURNING version;

-- name: delete_calendar
DELETE FROM calendar
 WHERE tenant = @tenant::int
   AND name = @name
RETURNING name;

-- name: make_backfill
-- Gives: nothing if the request made one before.
INSERT INTO backfill (schedule, tenant, lane, from_ms, to_ms, rate, reached_ms, request)
VALUES (@schedule::bigint, @tenant::int, @lane::int, @from_ms::bigint, @to_ms::bigint, @rate::float8,
        @from_ms::bigint - 1, @request::uuid)
    ON CONFLICT (schedule, request) DO NOTHING
RETURNING *;

-- name: read_backfills
SELECT *
  FROM backfill
 WHERE schedule = @schedule::bigint
   AND (@id::bigint IS NULL OR id = @id::bigint)
   AND (@request::uuid IS NULL OR request = @request::uuid)
 ORDER BY id DESC
 LIMIT 100;

-- name: note_backfill_waits
-- Why a backfill made nothing in its last step.
-- Copies: a note on a running backfill; its next step replaces it.
UPDATE backfill
   SET waits_for = @why::text
 WHERE id = @id::bigint
   AND state = 'running';

-- name: give_up_backfill
UPDATE backfill
   SET state = 'cancelled', ended_at = clock_timestamp(), waits_for = @why::text
 WHERE id = @id::bigint
   AND state = 'running';

-- name: cancel_backfill
UPDATE backfill
   SET state = 'cancelled', ended_at = clock_timestamp(), waits_for = NULL
 WHERE schedule = @schedule::bigint
   AND id = @id::bigint
   AND state = 'running'
RETURNING id;

-- name: read_running_backfills
SELECT backfill.*, schedule.name, schedule.version, schedule.definition, schedule.calendars, schedule.task_lane,
       octet_length(schedule.task_payload) AS size,
       CASE WHEN position('\x7b7b'::bytea IN schedule.task_payload) > 0 THEN schedule.task_payload END AS payload
  FROM (SELECT id, row_number() OVER (PARTITION BY tenant ORDER BY id) AS place
          FROM backfill
         WHERE lane = ANY (@lanes::int[])
           AND state = 'running') AS running
  JOIN backfill
    ON backfill.id = running.id
  JOIN schedule
    ON schedule.id = backfill.schedule
 ORDER BY running.place, backfill.id
 LIMIT @limit::int;
