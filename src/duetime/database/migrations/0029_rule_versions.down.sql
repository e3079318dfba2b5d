DROP INDEX task_type_change;
ALTER TABLE task_type DROP COLUMN held_bytes;
ALTER TABLE task_type DROP COLUMN change;
DROP TABLE tenant_rule_change;
ALTER TABLE rule_change DROP COLUMN named;
