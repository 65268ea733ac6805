"""The broker: delivery state of pipelines in Redis. Callers use `broker.Broker` only."""
