-- fragment: new_request
-- Stores the keys of requests (@request_ids) for their tenants, with a fingerprint and the tasks that they ask for.
-- Holds: the requests that are new.
-- Locks: keys in the order given.
new_request AS (
    INSERT INTO request_key (id, tenant, fingerprint, tasks)
    SELECT asked.id, asked.tenant, asked.fingerprint, asked.tasks
      FROM fresh,
           unnest(@request_ids::uuid[], @request_tenants::int[], @request_fingerprints::bytea[],
                  @request_tasks::bytea[]) AS asked (id, tenant, fingerprint, tasks)
        ON CONFLICT DO NOTHING
    RETURNING id
)

-- fragment: new_key
-- Stores idempotency keys (@keys) with their tasks, if their request was new.
-- Holds: the tasks of the keys that are new.
-- Locks: keys in the order given.
new_key AS (
    INSERT INTO idempotency_key (tenant, key, task, fingerprint, expires_at)
    SELECT asked.tenant, asked.key, asked.task, asked.fingerprint, fresh.at + asked.ttl * interval '1 second'
      FROM fresh,
           unnest(@key_tenants::int[], @keys::text[], @key_tasks::uuid[], @key_fingerprints::bytea[],
                  @key_ttls::float8[], @key_requests::uuid[])
               AS asked (tenant, key, task, fingerprint, ttl, request)
     WHERE asked.request IS NULL
        OR asked.request IN (SELECT id FROM new_request)
        ON CONFLICT (tenant, key) DO NOTHING
    RETURNING task
)

-- fragment: stored_tasks
-- Gives: one row if the ids were fresh: how many were stored, and which, if not all.
SELECT fresh.at, stored.count,
       CASE WHEN stored.count < cardinality(@ids::uuid[]) THEN ARRAY(SELECT id FROM wanted) END AS ids
  FROM fresh, (SELECT count(*) FROM wanted) AS stored

-- name: submit
-- Store new tasks, which then wait, whether they are due now or in ten years.  A task with
-- a holder, which waits and has room for it, is stored with its claim.
-- Time:  refuses ids minted more than the tolerance before the database's clock,
--        which is read after the transaction has its number: a claimer may then
--        forget what is older.  Ids minted more than @ahead_ms after it
--        are refused too: the clock has gone back, and the tasks would wait for it.
-- Gives: one row if the ids were fresh, none if new ids must be minted.
-- An array of NULLs may be NULL itself: unnest fills it up.  If all tasks are in one lane or of one type, a single
-- value replaces the array.  Times are microseconds since 1970, because the driver would create objects for them.
-- Copies: stores nothing: the ids exist already, or were minted too long ago.
WITH {fresh_ids},
asked AS (
    INSERT INTO task (lane, id, type, payload, options, labels, run_at, expires_at, created_at)
    SELECT COALESCE(wanted.lane, @lane::int), wanted.id, COALESCE(wanted.type, @type::text), wanted.payload,
           wanted.options, wanted.labels::jsonb, COALESCE(to_timestamp(wanted.run_us / 1e6::float8), fresh.minted_at),
           wanted.expires_at, fresh.minted_at
      FROM fresh,
           unnest(@lanes::int[], @ids::uuid[], @types::text[], @payloads::bytea[], @options::bytea[], @labels::text[],
                  @run_us::bigint[], @expires_ats::timestamptz[])
               AS wanted (lane, id, type, payload, options, labels, run_us, expires_at)
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT COALESCE(wanted.lane, @lane::int), wanted.id, wanted.id, 1
      FROM fresh, unnest(@lanes::int[], @ids::uuid[], @holders::bigint[]) AS wanted (lane, id, holder)
     WHERE wanted.holder IS NULL
),
claimed AS (
    INSERT INTO claim (lane, task, number, failures, crashes, releases, holder, picked_at)
    SELECT COALESCE(wanted.lane, @lane::int), wanted.id, 1, 0, 0, 0, wanted.holder, fresh.at
      FROM fresh, unnest(@lanes::int[], @ids::uuid[], @holders::bigint[]) AS wanted (lane, id, holder)
     WHERE wanted.holder IS NOT NULL
)
SELECT at
  FROM fresh;

-- name: submit_plain
-- The same for tasks that have only a type, a payload and a lane, are due now, and for which no holder waits: nearly
-- all tasks.  Preparing the other columns takes PostgreSQL a tenth of the time of a single task's commit.
-- Copies: as submit.
WITH {fresh_ids},
asked AS (
    INSERT INTO task (lane, id, type, payload, run_at, created_at)
    SELECT COALESCE(wanted.lane, @lane::int), wanted.id, COALESCE(wanted.type, @type::text), wanted.payload,
           fresh.minted_at, fresh.minted_at
      FROM fresh,
           unnest(@lanes::int[], @ids::uuid[], @types::text[], @payloads::bytea[])
               AS wanted (lane, id, type, payload)
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT COALESCE(wanted.lane, @lane::int), wanted.id, wanted.id, 1
      FROM fresh, unnest(@lanes::int[], @ids::uuid[]) AS wanted (lane, id)
)
SELECT at
  FROM fresh;

-- name: submit_one
-- The same for one such task.  Without arrays to unnest, PostgreSQL needs a seventh less time.
-- Copies: as submit.
WITH {fresh_ids},
asked AS (
    INSERT INTO task (lane, id, type, payload, run_at, created_at)
    SELECT @lane::int, @id::uuid, @type::text, @payload::bytea, minted_at, minted_at
      FROM fresh
)
INSERT INTO due (lane, wake, task, number)
SELECT @lane::int, @id::uuid, @id::uuid, 1
  FROM fresh
RETURNING number;

-- name: submit_plain_keyed
-- The same if some tasks come with the key of their request, as all tasks of the SDK do: a task is stored only if its
-- request (by its place among the requests) is new.
-- Locks: keys in the order given (sorted by the caller, so nobody deadlocks).
-- Gives: one row if the ids were fresh: how many were stored, and which, if not all.
-- Copies: as submit; the requests exist already.
WITH {fresh_ids},
{new_request},
wanted AS MATERIALIZED (
    SELECT COALESCE(wanted.lane, @lane::int) AS lane, wanted.id, COALESCE(wanted.type, @type::text) AS type,
           wanted.payload
      FROM fresh,
           unnest(@lanes::int[], @ids::uuid[], @types::text[], @payloads::bytea[], @requests::int[])
               AS wanted (lane, id, type, payload, request)
     WHERE (SELECT count(*) FROM new_request) = cardinality(@request_ids::uuid[])
        OR COALESCE(wanted.request, @request::int) IS NULL
        OR (@request_ids::uuid[])[COALESCE(wanted.request, @request::int)] IN (SELECT id FROM new_request)
),
asked AS (
    INSERT INTO task (lane, id, type, payload, run_at, created_at)
    SELECT wanted.lane, wanted.id, wanted.type, wanted.payload, fresh.minted_at, fresh.minted_at
      FROM fresh, wanted
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, id, id, 1
      FROM wanted
)
{stored_tasks};

-- name: submit_keyed
-- Store requests, keys and tasks together: a task is stored only if its request (by its
-- place among the requests) and its key are new.  An existing key wins, also after its ttl (keys.py).
-- Locks: keys in the order given (sorted by the caller, so nobody deadlocks).
-- Gives: one row if the ids were fresh: how many were stored, and which, if not all.
-- Copies: as submit; the requests and keys exist already.
WITH {fresh_ids},
{new_request},
{new_key},
wanted AS MATERIALIZED (
    SELECT COALESCE(wanted.lane, @lane::int) AS lane, wanted.id, COALESCE(wanted.type, @type::text) AS type,
           wanted.payload, wanted.options, wanted.labels, wanted.run_us, wanted.expires_at, wanted.holder
      FROM fresh,
           unnest(@lanes::int[], @ids::uuid[], @types::text[], @payloads::bytea[], @options::bytea[], @labels::text[],
                  @run_us::bigint[], @expires_ats::timestamptz[], @requests::int[], @is_keyed::boolean[],
                  @holders::bigint[])
               AS wanted (lane, id, type, payload, options, labels, run_us, expires_at, request, is_keyed, holder)
     WHERE ((SELECT count(*) FROM new_request) = cardinality(@request_ids::uuid[])
            OR COALESCE(wanted.request, @request::int) IS NULL
            OR (@request_ids::uuid[])[COALESCE(wanted.request, @request::int)] IN (SELECT id FROM new_request))
       AND (wanted.is_keyed IS NOT TRUE OR wanted.id IN (SELECT task FROM new_key))
),
asked AS (
    INSERT INTO task (lane, id, type, payload, options, labels, run_at, expires_at, created_at)
    SELECT wanted.lane, wanted.id, wanted.type, wanted.payload, wanted.options, wanted.labels::jsonb,
           COALESCE(to_timestamp(wanted.run_us / 1e6::float8), fresh.minted_at), wanted.expires_at, fresh.minted_at
      FROM fresh, wanted
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, id, id, 1
      FROM wanted
     WHERE holder IS NULL
),
claimed AS (
    INSERT INTO claim (lane, task, number, failures, crashes, releases, holder, picked_at)
    SELECT wanted.lane, wanted.id, 1, 0, 0, 0, wanted.holder, fresh.at
      FROM fresh, wanted
     WHERE wanted.holder IS NOT NULL
)
{stored_tasks};

-- name: submit_repeated
-- The same for a retry, when the result of the first try is unknown: existing rows
-- stay, and the insert waits for a transaction that is still storing them.  The first
-- try does not do this: a check before each insert costs a second look at the index
-- and a second record in the log.
-- Time:  ids that are too old stay too old; those in the future do not stay so, and are
--        stored.
-- Copies: as submit_keyed.
WITH {fresh_or_later_ids},
{new_request},
{new_key},
asked AS (
    INSERT INTO task (lane, id, type, payload, options, labels, run_at, expires_at, created_at)
    SELECT COALESCE(wanted.lane, @lane::int), wanted.id, COALESCE(wanted.type, @type::text), wanted.payload,
           wanted.options, wanted.labels::jsonb, COALESCE(to_timestamp(wanted.run_us / 1e6::float8), fresh.minted_at),
           wanted.expires_at, fresh.minted_at
      FROM fresh,
           unnest(@lanes::int[], @ids::uuid[], @types::text[], @payloads::bytea[], @options::bytea[], @labels::text[],
                  @run_us::bigint[], @expires_ats::timestamptz[], @requests::int[], @is_keyed::boolean[])
               AS wanted (lane, id, type, payload, options, labels, run_us, expires_at, request, is_keyed)
     WHERE (COALESCE(wanted.request, @request::int) IS NULL
            OR (@request_ids::uuid[])[COALESCE(wanted.request, @request::int)] IN (SELECT id FROM new_request))
       AND (wanted.is_keyed IS NOT TRUE OR wanted.id IN (SELECT task FROM new_key))
        ON CONFLICT DO NOTHING
    RETURNING lane, id
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT lane, id, id, 1
      FROM asked
)
SELECT fresh.at, stored.count,
       CASE WHEN stored.count < cardinality(@ids::uuid[]) THEN ARRAY(SELECT id FROM asked) END AS ids
  FROM fresh, (SELECT count(*) FROM asked) AS stored;

-- name: probe
-- Find which of these ids have no task.  Always rolled back.
-- Locks: the ids; waits for a transaction that is still storing them.
-- Index: task_pkey (lane, id).
INSERT INTO task (lane, id, type, payload, run_at)
SELECT lane, id, '', '', clock_timestamp()
  FROM unnest(@lanes::int[], @ids::uuid[]) AS asked (lane, id)
    ON CONFLICT DO NOTHING
RETURNING id;
