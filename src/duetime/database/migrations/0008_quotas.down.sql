DROP TABLE budget;
DELETE FROM audit WHERE tenant IS NULL;
ALTER TABLE audit ALTER COLUMN tenant SET NOT NULL;
UPDATE tenant SET weight = 1 WHERE weight IS NULL;
ALTER TABLE tenant
    DROP COLUMN tier,
    DROP COLUMN spread,
    DROP COLUMN quotas,
    DROP COLUMN change,
    ALTER COLUMN weight SET DEFAULT 1,
    ALTER COLUMN weight SET NOT NULL;
DROP TABLE tier;
