-- name: has_database
SELECT EXISTS (SELECT FROM pg_database WHERE datname = @database::text);

-- name: create_database
-- Copies: fails if the database exists.
CREATE DATABASE :"database";
