"""OpenLineage's properties of a task reach the Spark application that it submits, and nobody who lists processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.micro_batch.work_needed import WorkNeeded
from tests.airflow.conftest import write_pipeline

API_KEY, SECRET = "spark.openlineage.transport.auth.apiKey", "hush-1-2-3"
ODD = "fe=eds: \\d #1, ü\t\nend"
COMPAT = "airflow.providers.common.compat.openlineage.utils.spark"


@pytest.fixture
def submitted(
    home: Path, spark_connection: str, application: Path, tmp_path: Path, context: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Executes the operator with these options; (the words of the driver JVM's command line, Spark's properties)."""
    write_pipeline(home)
    monkeypatch.setattr(
        "conduit_tasks.micro_batch.work_needed.needed", lambda *_, **__: WorkNeeded(True, "micro-batch 1")
    )
    out = tmp_path / "said"
    application.write_text(
        "import json, os, stat, sys\n"
        "words = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        "file = words[words.index('--properties-file') + 1]\n"
        # What a context would take, without the start of one
        "from pyspark import SparkConf, SparkContext\n"
        "SparkContext._ensure_initialized()\n"
        "conf = dict(SparkConf().getAll())\n"
        f"said = [words, conf, file, stat.S_IMODE(os.stat(file).st_mode)]\n"
        f"open({str(out)!r}, 'w').write(json.dumps(said))\n"
    )

    def run(**options: Any) -> tuple[list[str], dict[str, str]]:
        task = {"task_id": "t", "pipeline_id": "toy", "node": "destinations.out", "drain_limit": 60.0}
        ConduitSubmitOperator(**task, **options).execute(context)
        words, properties, file, mode = json.loads(out.read_text())
        assert mode == 0o600
        assert not Path(file).exists(), "the file of the properties is gone with the submit"
        return words, properties

    return run


@pytest.mark.slow
def test_what_the_provider_injects_and_what_the_user_sets_goes_with_the_submit(
    submitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given what stands in for the OpenLineage provider's two functions
    def parent(properties: dict[str, str], context: Any) -> dict[str, str]:
        return {**properties, "spark.openlineage.parentRunId": context["run_id"]}

    def transport(properties: dict[str, str], context: Any) -> dict[str, str]:
        return {**properties, "spark.openlineage.transport.type": "http", API_KEY: SECRET}

    monkeypatch.setattr(f"{COMPAT}.inject_parent_job_information_into_spark_properties", parent)
    monkeypatch.setattr(f"{COMPAT}.inject_transport_information_into_spark_properties", transport)
    # When only the first is asked for
    words, properties = submitted(openlineage_inject_parent_job_info=True, conf={"spark.openlineage.namespace": ODD})
    # Then Spark has it, and what the user set, to the letter
    assert properties["spark.openlineage.parentRunId"] == "r1"
    assert properties["spark.openlineage.namespace"] == ODD
    assert "spark.openlineage.transport.type" not in properties
    # And when only the second is, then its key is in Spark and in no command line
    words, properties = submitted(openlineage_inject_transport_info=True)
    assert properties["spark.openlineage.transport.type"] == "http"
    assert properties[API_KEY] == SECRET
    assert "spark.openlineage.parentRunId" not in properties
    assert not [word for word in words if SECRET in word or "openlineage" in word]
