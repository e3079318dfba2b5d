DROP TABLE submit_rate;
DROP TABLE flow_key;
-- A type without a schema took any payload.
UPDATE task_type SET schema = 'true' WHERE schema IS NULL;
ALTER TABLE task_type
    DROP COLUMN rules,
    ALTER COLUMN schema SET NOT NULL;
