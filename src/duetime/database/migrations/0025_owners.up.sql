-- The name of a worker belongs to the key that first spoke under it, and to the keys that were rotated from that one.
-- `family` is the first of them, NULL: the key itself; `owner` is a family, NULL: nobody's so far.
ALTER TABLE api_key ADD COLUMN family int;
ALTER TABLE holder ADD COLUMN owner int;
