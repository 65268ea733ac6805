"""Sending again: dead letters and what waits behind them (SEMANTICS X2, X4), or an interval of records (X3).

A resend is a selection (`select`) that is prepared (`before_fan_out`, `prepare`) and delivered by the same engines as
live records, under the destination's own lease, through one port (`port`). Live cursors never move.
"""
