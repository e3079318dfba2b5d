-- Back to where the relay of before finds them.
INSERT INTO outbox (id, tenant, body, written_at)
OVERRIDING SYSTEM VALUE
SELECT id, tenant, body, written_at
  FROM outbox_aside;
DROP TABLE outbox_aside;
