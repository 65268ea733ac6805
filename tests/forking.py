"""Tests whose process is forked as a task's is."""

from __future__ import annotations

import sys

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from conduit_tasks.spark import plain, session


def as_of_a_task(patched: pytest.MonkeyPatch) -> None:
    """What is forked now has neither a Spark nor a user's code that other tests have loaded, as a task has none."""
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        patched.setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        patched.setattr(SparkSession, name, None)
    patched.setattr(plain, "_shipped", None)
    patched.setattr(session, "_executors", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "include"]:
        patched.delitem(sys.modules, name)
