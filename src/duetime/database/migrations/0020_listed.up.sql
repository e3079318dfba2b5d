-- Where lists show a task that was cancelled or made due before its time.  All others have their place by their id,
-- which is their due time.  Nothing else writes here, so submitting and settling pay nothing for it.
CREATE TABLE listed (
    lane  int  NOT NULL,
    task  uuid NOT NULL,
    -- The task's id with the time of what happened in place of its due time.
    place uuid NOT NULL,
    PRIMARY KEY (lane, task)
);
CREATE INDEX listed_place ON listed (lane, place);

CREATE FUNCTION place_at(at_ms bigint, task uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(at_ms), 12, '0') || right(replace(task::text, '-', ''), 20))::uuid
$$;
