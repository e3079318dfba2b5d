-- How long a holder may be silent before it counts as dead, and what workers of a queue are given; NULL: as long as the node says.
ALTER TABLE holder ADD COLUMN max_silence float8;
ALTER TABLE limit_rule ADD COLUMN max_silence float8;
