#!/usr/bin/env bash
# Fetches a Kafka server's jars to .conduit/kafka/jars, for tests and benchmarks; quick where they are there.
exec "$(dirname "$0")/jars.sh" kafka
