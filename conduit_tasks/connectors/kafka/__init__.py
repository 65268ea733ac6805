"""Kafka topics, through librdkafka."""
