#!/bin/bash
# First start: a cluster whose superuser has POSTGRES_PASSWORD, the database POSTGRES_DB, then the scripts of
# /docker-entrypoint-initdb.d while only the socket listens.
set -euo pipefail
data=/var/lib/postgresql/data/cluster
if [ ! -f "$data/initialised" ]; then
  rm -rf "$data"
  initdb -D "$data" -U "$POSTGRES_USER" -A scram-sha-256 --auth-local=trust -E UTF8 --locale=C.UTF-8 --pwfile=<(echo "$POSTGRES_PASSWORD")
  echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
  pg_ctl -D "$data" -w start -o "-c listen_addresses= -c unix_socket_directories=/var/run/postgresql"
  [ "$POSTGRES_DB" = postgres ] || createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
  for script in /docker-entrypoint-initdb.d/*.sh; do sh "$script"; done
  pg_ctl -D "$data" -w stop -m fast
  touch "$data/initialised"
fi
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
