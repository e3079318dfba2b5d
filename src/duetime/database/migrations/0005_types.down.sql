DROP SEQUENCE task_type_change;
DROP TABLE task_type;
