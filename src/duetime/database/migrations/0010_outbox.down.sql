DROP FUNCTION enqueue(text, json);
DROP TABLE outbox_refused;
DROP TABLE outbox;
