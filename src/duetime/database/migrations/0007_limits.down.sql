DROP TABLE limit_rule;
