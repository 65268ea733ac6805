#!/usr/bin/env bash
# stack-init.sh [FILE]: writes FILE (default: .env) with the stack's secrets, random and readable by its owner only.
# A file that is there is kept: what it protects was made with its values. Missing names are added to it.
set -euo pipefail
file=${1:-$(dirname "$0")/../.env}
umask 077
[ -e "$file" ] || : > "$file"
chmod 600 "$file"

random() { head -c "$1" /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

add() { # add NAME VALUE: written in one go, where the name is not there yet
  grep -q "^$1=" "$file" || printf '%s=%s\n' "$1" "$2" >> "$file"
}

add POSTGRES_PASSWORD "$(random 24)"
add DEMO_DATABASE_PASSWORD "$(random 24)"
add REDIS_PASSWORD "$(random 24)"
# Fernet wants 32 bytes in URL-safe base64.
add AIRFLOW_FERNET_KEY "$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')"
add AIRFLOW_API_SECRET_KEY "$(random 32)"
add AIRFLOW_JWT_SECRET "$(random 64)"
add AIRFLOW_ADMIN_PASSWORD "$(random 12)"
add GATEWAY_TOKEN "$(random 24)"
add SPARK_CONNECT_TOKEN "$(random 24)"
add KAFKA_CLUSTER_ID "$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c1-22)"
echo "secrets are in $file"
