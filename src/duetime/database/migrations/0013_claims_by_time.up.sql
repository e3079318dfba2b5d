-- A beat reads what its holder was given lately, and passes over what ended long ago and could not be cleared away yet.
DROP INDEX claim_holder;
CREATE INDEX claim_holder ON claim (holder, picked_at);
