DROP TABLE breaker;
