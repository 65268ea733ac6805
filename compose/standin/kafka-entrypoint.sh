#!/bin/bash
# KAFKA_SOME_KEY=value becomes some.key=value; storage is formatted once, under CLUSTER_ID.
set -euo pipefail
file=$(mktemp)
env | sed -n 's/^KAFKA_\([A-Z_]*\)=\(.*\)/\1=\2/p' | grep -v ^HEAP_OPTS= \
  | while IFS== read -r name value; do echo "$(tr 'A-Z_' 'a-z.' <<< "$name")=$value"; done > "$file"
run() { exec java ${KAFKA_HEAP_OPTS:-} -XX:+UseSerialGC -cp '/opt/kafka/libs/*' "$@"; }
(run kafka.tools.StorageTool format -t "$CLUSTER_ID" -c "$file" --ignore-formatted)
run kafka.Kafka "$file"
