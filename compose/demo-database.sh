#!/bin/sh
# A database of its own for the demo's table, made with the server's volume.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$DEMO_DATABASE_PASSWORD" -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'END'
CREATE ROLE demo LOGIN PASSWORD :'password';
CREATE DATABASE demo OWNER demo;
END
