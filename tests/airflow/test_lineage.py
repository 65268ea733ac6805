"""OpenLineage's properties of a task reach the Spark application that it submits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.micro_batch.work import WorkNeeded
from tests.airflow.conftest import write_pipeline

COMPAT = "airflow.providers.common.compat.openlineage.utils.spark"


@pytest.fixture
def submitted(
    home: Path, spark_connection: str, application: Path, tmp_path: Path, context: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Executes the operator with these options; the words of the driver JVM's command line."""
    write_pipeline(home)
    monkeypatch.setattr("conduit_tasks.micro_batch.work.needed", lambda *_, **__: WorkNeeded(True, "micro-batch 1"))
    out = tmp_path / "words"
    application.write_text(
        "import os\n"
        "words = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        f"open({str(out)!r}, 'w').write(chr(10).join(words))\n"
    )

    def run(**options: Any) -> list[str]:
        ConduitSubmitOperator(task_id="t", pipeline_id="toy", node="destinations.out", **options).execute(context)
        return out.read_text().splitlines()

    return run


def test_what_the_provider_injects_and_what_the_user_sets_goes_with_the_submit(
    submitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given what stands in for the OpenLineage provider's two functions
    def parent(properties: dict[str, str], context: Any) -> dict[str, str]:
        return {**properties, "spark.openlineage.parentRunId": context["run_id"]}

    def transport(properties: dict[str, str], context: Any) -> dict[str, str]:
        return {**properties, "spark.openlineage.transport.type": "http"}

    monkeypatch.setattr(f"{COMPAT}.inject_parent_job_information_into_spark_properties", parent)
    monkeypatch.setattr(f"{COMPAT}.inject_transport_information_into_spark_properties", transport)
    # When only the first is asked for
    words = submitted(openlineage_inject_parent_job_info=True, conf={"spark.openlineage.namespace": "feeds"})
    # Then
    assert {"spark.openlineage.parentRunId=r1", "spark.openlineage.namespace=feeds"} <= set(words)
    assert "spark.openlineage.transport.type=http" not in words
    # And when only the second is
    words = submitted(openlineage_inject_transport_info=True)
    assert "spark.openlineage.transport.type=http" in words
    assert "spark.openlineage.parentRunId=r1" not in words
