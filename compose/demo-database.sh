#!/bin/sh
# A database of its own for the demo's table, made with the server's volume.
set -eu
# The password is in no command line: psql asks a command that names only the variable.
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'END'
\set password `printenv DEMO_DATABASE_PASSWORD`
CREATE ROLE demo LOGIN PASSWORD :'password';
CREATE DATABASE demo OWNER demo;
END
