DELETE FROM due WHERE lane < 256;
DROP TABLE calendar;
DROP TABLE backfill;
DROP TABLE fire;
DROP TABLE schedule_state;
DROP TABLE schedule;
