"""Retries and run parameters that both DAGs of a pipeline have."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param

from conduit_tasks.topology import Pipeline

RETRIES, RETRY_DELAY = 2, timedelta(seconds=5)
"""Retries by Airflow, for the machinery (a lost worker, Spark, Redis); `delivery` retries sends."""


def destinations_param(pipeline: Pipeline, meaning: str, *others: str) -> Param:
    """Returns the run parameter that chooses some of the pipeline's destinations, or `others`."""
    names = [*(d.id for d in pipeline.destinations), *others]
    items = {"type": "string", "enum": names}
    return Param([], type="array", title="Destinations", description=meaning, items=items, examples=names)
