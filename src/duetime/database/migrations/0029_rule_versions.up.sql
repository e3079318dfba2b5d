-- A node that has seen one change reads the next one, and not all that there is.
-- `named`: of how many changes it is written down whose they were; a release that does not know of it leaves it behind.
ALTER TABLE rule_change ADD COLUMN named bigint NOT NULL DEFAULT 0;
-- With which change of its kind a tenant's rules became what they are.
CREATE TABLE tenant_rule_change (
    kind   text   NOT NULL,
    tenant int    NOT NULL,
    change bigint NOT NULL,
    PRIMARY KEY (kind, tenant)
);
CREATE INDEX tenant_rule_change_change ON tenant_rule_change (kind, change);
-- The change with which a type became what it is, and what its schema holds in memory when it is compiled.
ALTER TABLE task_type ADD COLUMN change bigint NOT NULL DEFAULT 0;
ALTER TABLE task_type ADD COLUMN held_bytes bigint;
CREATE INDEX task_type_change ON task_type (tenant, change);
