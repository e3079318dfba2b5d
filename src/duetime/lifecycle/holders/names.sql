-- name: register
-- The live row of a holder, made if there is none.  No row: its name belongs to another key.
-- Locks: the row, only if it is the key's own; another's is not changed.
-- Index: holder_name, unique among the living.
-- Copies: makes or keeps a holder for which no worker sends beats; its silence ends it.
INSERT INTO holder (tenant, name, owner)
VALUES (@tenant::int, @name::text, @key::int)
    ON CONFLICT (tenant, name) WHERE ended_at IS NULL
    DO UPDATE SET beaten_at = clock_timestamp(), owner = COALESCE(holder.owner, EXCLUDED.owner)
            WHERE EXCLUDED.owner IS NULL OR holder.owner IS NULL OR holder.owner = EXCLUDED.owner
RETURNING id, owner;

-- name: find
-- Index: holder_name, unique among the living.
SELECT id, owner
  FROM holder
 WHERE tenant = @tenant::int
   AND name = @name::text
   AND ended_at IS NULL;
