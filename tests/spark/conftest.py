"""A standalone Spark cluster of the tests' own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import conduit_tasks
from benchmarks.cluster import Cluster, standing
from conduit_tasks.spark import cds
from tests.jvm import quick_options
from tests.s3 import bucket, s3_server  # noqa: F401

ROOT = Path(conduit_tasks.__file__).parents[1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster, as the compose stack has it, whose executors have what this process has."""
    options, ours = quick_options()
    environment = {**os.environ, **ours, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with standing(tmp_path, environment, cds.spark_home(), options=options) as found:
        yield found
