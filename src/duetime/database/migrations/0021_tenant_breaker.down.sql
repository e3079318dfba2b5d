DELETE FROM breaker
 WHERE host = 'tenant';
DROP TABLE tenant_breaker;
