-- What a holder that signed off held was given back by itself: that costs its tasks nothing.
ALTER TABLE holder ADD COLUMN signed_off boolean NOT NULL DEFAULT false;
