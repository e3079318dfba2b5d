DROP TABLE rescheduled;
