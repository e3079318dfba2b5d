DROP FUNCTION place_at(bigint, uuid);
DROP TABLE listed;
