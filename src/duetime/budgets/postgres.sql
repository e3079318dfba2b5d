-- name: take
-- Fill each bucket up to now and take from it what is wanted, as far as it goes.
-- Locks: the buckets, in the order given (sorted by the caller, so nobody deadlocks).
-- Index: budget_pkey.
-- Time:  the database's, read when a bucket's row is locked.
-- Copies: takes tokens that are not used: fewer are granted for a moment, never more.
INSERT INTO budget AS kept (name, tokens, at, rate, burst, wanted, granted)
SELECT asked.name, asked.first - LEAST(floor(asked.first), asked.wanted), clock_timestamp(), asked.rate, asked.burst,
       asked.wanted, LEAST(floor(asked.first), asked.wanted)
  FROM unnest(@names::text[], @rates::float8[], @bursts::float8[], @firsts::float8[], @wanted::float8[])
           AS asked (name, rate, burst, first, wanted)
    ON CONFLICT (name) DO UPDATE
   SET (tokens, at, rate, burst, wanted, granted) = (
       SELECT filled.tokens - LEAST(floor(filled.tokens), excluded.wanted), filled.at, excluded.rate, excluded.burst,
              excluded.wanted, LEAST(floor(filled.tokens), excluded.wanted)
         FROM (SELECT now.at,
                      LEAST(excluded.burst,
                            kept.tokens + excluded.rate * GREATEST(0, extract(epoch FROM now.at - kept.at)))
                          AS tokens
                 FROM (SELECT clock_timestamp() AS at OFFSET 0) AS now) AS filled)
RETURNING name, granted;
