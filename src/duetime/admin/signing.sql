-- name: read
-- Index: tenant_pkey.
-- Time: the database's clock says whether the former secret still signs.
SELECT signing_secret, signing_version,
       CASE WHEN former_secret_until > clock_timestamp() THEN former_secret END AS former_secret,
       CASE WHEN former_secret_until > clock_timestamp() THEN former_secret_until END AS former_until
  FROM tenant
 WHERE id = @tenant::int;

-- name: rotate
-- A new secret; the one that it replaces signs as well for a while, and one that did so until now is dropped.
-- Gives: nothing if the request was done before; until when the dropped one was to sign, if there was one.
-- Locks: the tenant, then the number of changes, until the commit.
-- Index: tenant_pkey.
WITH old AS MATERIALIZED (
    SELECT id, name, signing_secret, signing_version,
           CASE WHEN former_secret_until > clock_timestamp() THEN former_secret_until END AS dropped_until
      FROM tenant
     WHERE id = @tenant::int
       AND (@request::uuid IS NULL OR signing_request IS DISTINCT FROM @request::uuid)
       FOR UPDATE
),
counted AS (
    UPDATE rule_change
       SET change = change + 1
     WHERE kind = 'tenants'
       AND EXISTS (SELECT FROM old)
 RETURNING change
),
changed AS (
    UPDATE tenant
       SET signing_secret = @secret::bytea,
           signing_version = old.signing_version + 1,
           signing_request = @request::uuid,
           former_secret = CASE WHEN @seconds::float8 > 0 THEN old.signing_secret END,
           former_secret_until = CASE WHEN @seconds::float8 > 0
                                      THEN clock_timestamp() + @seconds::float8 * interval '1 second'
                                 END,
           change = counted.change
      FROM old, counted
     WHERE tenant.id = old.id
 RETURNING tenant.id, tenant.former_secret_until
),
noted AS (
    INSERT INTO audit (tenant, key, action, subject, before, after)
    SELECT old.id, @key::int, 'signing_secret.rotate', old.name,
           jsonb_build_object('version', old.signing_version, 'former_until', old.dropped_until),
           jsonb_build_object('version', old.signing_version + 1, 'former_until', changed.former_secret_until)
      FROM old
      JOIN changed ON changed.id = old.id
)
SELECT old.dropped_until
  FROM old
  JOIN changed ON changed.id = old.id;
