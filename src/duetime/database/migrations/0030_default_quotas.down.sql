DELETE FROM tier
 WHERE name = 'default'
   AND NOT EXISTS (SELECT FROM tenant WHERE tier = 'default');
ALTER TABLE tenant DROP COLUMN defaults;
-- Older code does not know these, and would read no quotas at all.
UPDATE tenant
   SET quotas = quotas - 'submit_bytes_rate' - 'submit_bytes_burst'
 WHERE quotas ?| ARRAY['submit_bytes_rate', 'submit_bytes_burst'];
UPDATE tier
   SET quotas = quotas - 'submit_bytes_rate' - 'submit_bytes_burst'
 WHERE quotas ?| ARRAY['submit_bytes_rate', 'submit_bytes_burst'];
