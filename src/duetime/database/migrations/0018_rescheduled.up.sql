-- The time of a task that was given another one.  The task's row stays as it was submitted, and so does its id, which
-- carries the first time; a wake cannot keep the new one, because a retry has a wake of its own.  Most tasks have no row.
CREATE TABLE rescheduled (
    lane    int NOT NULL,
    task    uuid NOT NULL,
    run_at  timestamptz NOT NULL,
    PRIMARY KEY (lane, task)
);
