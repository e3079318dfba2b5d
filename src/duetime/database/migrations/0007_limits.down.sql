DROP TABLE limit_change;
DROP TABLE limit_rule;
