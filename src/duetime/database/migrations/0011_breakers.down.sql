DROP SEQUENCE breaker_change;
DROP TABLE breaker;
