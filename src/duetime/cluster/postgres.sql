-- name: join
-- Become a member, in place of whoever had the name.
INSERT INTO node (cluster, name, incarnation, address)
VALUES (@cluster::text, @name::text, @incarnation::bigint, @address::text)
    ON CONFLICT (cluster, name)
    DO UPDATE SET incarnation = excluded.incarnation,
                  address = excluded.address,
                  beats = 0,
                  joined_at = clock_timestamp(),
                  beaten_at = clock_timestamp();

-- name: beat
-- Raise this node's counter and read everybody's.
-- Copies: names the incarnation; an ended one is seen a few seconds longer.
WITH mine AS (
    UPDATE node
       SET beats = beats + 1,
           beaten_at = clock_timestamp()
     WHERE cluster = @cluster::text
       AND name = @name::text
       AND incarnation = @incarnation::bigint
)
SELECT name, incarnation, address, beats
  FROM node
 WHERE cluster = @cluster::text;

-- name: leave
-- Copies: names the incarnation.
DELETE FROM node
 WHERE cluster = @cluster::text
   AND name = @name::text
   AND incarnation = @incarnation::bigint;

-- name: forget
-- Rows of nodes that ended without a word, long ago; one that is there after all joins again.
-- Copies: the same rows are too old at any later time; a living node joins again.
DELETE FROM node
 WHERE beaten_at < clock_timestamp() - interval '1 hour';
