DROP FUNCTION to_ms, due_ms, random_salt, mint_wake;
DROP TABLE request_key, idempotency_key, holder, dead, held, attempt, claim, due, task,
           lane_hint, lane, api_key, tenant;
DROP SEQUENCE lane_index;
