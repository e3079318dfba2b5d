DROP TABLE breaker_state;
