-- Where the HTTP targets of a tenant may be: {"hosts": […], "ports": […], "https_only": true}; what is absent is not limited.
ALTER TABLE tenant ADD COLUMN egress jsonb NOT NULL DEFAULT '{}';
ALTER TABLE tier ADD COLUMN egress jsonb NOT NULL DEFAULT '{}';
