-- When each key was last used, and from where. Beside the keys, because it changes every minute: updates stay in their page.
CREATE TABLE api_key_use (
    key int PRIMARY KEY,
    used_at timestamptz NOT NULL,
    used_from text NOT NULL
) WITH (fillfactor = 50);

-- Since when its use is noted: of a key that was there before, since this step.
ALTER TABLE api_key ADD COLUMN watched_since timestamptz NOT NULL DEFAULT now();
