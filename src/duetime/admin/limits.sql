-- name: put
-- Store a rule; what is NULL stays as it is.  A change that changes nothing is not noted.
-- Locks: the rule, then the row of rule_change.
-- Gives: the rule if it is new or was changed; nothing where it is the same, or the tenant has too many.
WITH old AS MATERIALIZED (
    SELECT version, limits, state, max_silence
      FROM limit_rule
     WHERE tenant = @tenant::int
       AND scope = @scope::smallint
       AND name = @name::text
       FOR UPDATE
),
changed AS (
    INSERT INTO limit_rule AS kept (tenant, scope, name, limits, state, max_silence)
    SELECT @tenant::int, @scope::smallint, @name::text, coalesce(@limits::bytea, '{}'), coalesce(@state::text, 'active'),
           @max_silence::float8
     WHERE EXISTS (SELECT FROM old)
        OR (SELECT count(*) FROM limit_rule WHERE tenant = @tenant::int) < @most::int
        ON CONFLICT (tenant, scope, name) DO UPDATE
       SET limits = coalesce(@limits::bytea, kept.limits), state = coalesce(@state::text, kept.state),
           max_silence = CASE WHEN @sets_silence::boolean THEN @max_silence::float8 ELSE kept.max_silence END,
           version = kept.version + 1, updated_at = clock_timestamp()
     WHERE (kept.limits, kept.state, kept.max_silence)
           IS DISTINCT FROM (coalesce(@limits::bytea, kept.limits), coalesce(@state::text, kept.state),
                             CASE WHEN @sets_silence::boolean THEN @max_silence::float8 ELSE kept.max_silence END)
 RETURNING name, limits, state, max_silence, version, updated_at, 'limits' AS kind
),
{rule_changed},
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT @tenant::int, @by::int, @noun::text || CASE changed.version WHEN 1 THEN '.create' ELSE '.change' END, changed.name,
           CASE WHEN old.version IS NOT NULL
                THEN jsonb_build_object('state', old.state, 'limits', convert_from(old.limits, 'UTF8')::jsonb)
                     || CASE WHEN old.max_silence IS NULL THEN '{}' ELSE jsonb_build_object('max_silence', old.max_silence) END
                END,
           jsonb_build_object('state', changed.state, 'limits', convert_from(changed.limits, 'UTF8')::jsonb)
           || CASE WHEN changed.max_silence IS NULL THEN '{}' ELSE jsonb_build_object('max_silence', changed.max_silence) END
      FROM changed
      LEFT JOIN old ON true
)
SELECT name, limits, state, max_silence, version, updated_at
  FROM changed;

-- name: delete
WITH changed AS (
    DELETE FROM limit_rule
     WHERE tenant = @tenant::int
       AND scope = @scope::smallint
       AND name = @name::text
 RETURNING name, limits, state, max_silence, 'limits' AS kind
),
{rule_changed},
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before)
    SELECT @tenant::int, @by::int, @noun::text || '.delete', name,
           jsonb_build_object('state', state, 'limits', convert_from(limits, 'UTF8')::jsonb)
           || CASE WHEN max_silence IS NULL THEN '{}' ELSE jsonb_build_object('max_silence', max_silence) END
      FROM changed
)
SELECT name
  FROM changed;

-- name: read_one
-- Index: limit_rule_pkey (tenant, scope, name), as of all that follow.
SELECT name, limits, state, max_silence, version, updated_at
  FROM limit_rule
 WHERE tenant = @tenant::int
   AND scope = @scope::smallint
   AND name = @name::text;

-- name: read_page
SELECT name, limits, state, max_silence, version, updated_at
  FROM limit_rule
 WHERE tenant = @tenant::int
   AND scope = @scope::smallint
   AND name > @after::text
 ORDER BY name
 LIMIT @limit::int;

-- name: read_all
SELECT tenant, scope, name, limits, state, max_silence
  FROM limit_rule;

-- name: read_changed
-- Of each tenant that changed its rules since: all of them; a row without a name says that it has none.
-- Index: tenant_rule_change_change (kind, change), limit_rule_pkey.
SELECT changed.tenant, kept.scope, kept.name, kept.limits, kept.state, kept.max_silence
  FROM tenant_rule_change AS changed
  LEFT JOIN limit_rule AS kept
    ON kept.tenant = changed.tenant
 WHERE changed.kind = 'limits'
   AND changed.change > @seen::bigint;

-- name: count_tasks
-- What runs and what waits past its time in some lanes, each counted up to `most`.
-- Index: claim_pkey (lane, task), due_pkey (lane, wake).
-- Time:  @until is the wake that stands for the database's now().
SELECT (SELECT count(*)
          FROM (SELECT FROM claim
                 WHERE lane = ANY (@lanes::int[])
                 LIMIT @most::int) AS claimed) AS running,
       (SELECT count(*)
          FROM (SELECT FROM unnest(@lanes::int[]) AS asked (lane)
                 CROSS JOIN LATERAL (
                       SELECT FROM due
                        WHERE due.lane = asked.lane
                          AND due.wake <= @until::uuid
                        LIMIT @most::int) AS waiting
                 LIMIT @most::int) AS counted) AS due;
