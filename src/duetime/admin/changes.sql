-- name: read_changes
-- The latest change of each kind of rules, and of how many changes nobody noted whose rules they were.
-- Index: none: the table has a row for each kind.
SELECT kind, change, change - named AS unnamed
  FROM rule_change;
