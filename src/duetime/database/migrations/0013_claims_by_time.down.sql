DROP INDEX claim_holder;
CREATE INDEX claim_holder ON claim (holder);
