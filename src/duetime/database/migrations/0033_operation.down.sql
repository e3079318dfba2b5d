DROP TABLE operation;
