"""Sending dead letters again, and what waits behind them (SEMANTICS X2, X4)."""
