-- Every new tenant has default quotas.  Those that are there have none, so that nothing of theirs is refused.
ALTER TABLE tenant ADD COLUMN defaults boolean NOT NULL DEFAULT false;
ALTER TABLE tenant ALTER COLUMN defaults SET DEFAULT true;
-- Nodes know by heart only tenants that changed once.
UPDATE rule_change SET change = change + 1 WHERE kind = 'tenants';
UPDATE tenant SET change = (SELECT change FROM rule_change WHERE kind = 'tenants') WHERE change = 0;
-- Its values hold where nobody says otherwise; one that is there already keeps its own.
INSERT INTO tier (name) VALUES ('default') ON CONFLICT (name) DO NOTHING;
