"""The broker: delivery state of pipelines in Redis. `broker.Broker` is the whole of it for callers."""
