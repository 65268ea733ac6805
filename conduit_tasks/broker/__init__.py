"""The broker: delivery state of pipelines in Redis. Callers use `broker.Broker`; those that only look at pipelines use
`looks`, `glances`, `figures` and `failures_of_all`."""
