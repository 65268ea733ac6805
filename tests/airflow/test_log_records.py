"""What an application logs as an object becomes a record of the task's log, with its level and its fields."""

from __future__ import annotations

import json
from pathlib import Path

from structlog.testing import capture_logs

from conduit_tasks.airflow.hook import ConduitSubmitHook


def test_records_of_the_application_keep_level_and_fields_and_other_lines_stay_lines(
    home: Path, spark_connection: str
) -> None:
    hook = ConduitSubmitHook(home, conn_id=spark_connection, conf={}, name="n", application_args=[], quick_jit=True)
    record = {
        "timestamp": "2026-01-02T03:04:05.000000+00:00",
        "level": "warning",
        "logger": "conduit_tasks.delivery.batch_wise",
        "event": "sending again",
        "pipeline": "p",
        "micro_batch": 7,
    }
    passed: list[str] = []
    with capture_logs() as found:
        lines = [json.dumps(record, separators=(",", ":")) + "\n", "WARN of Spark's\n", '{"timestamp":\n']
        passed.extend(hook._without_events(iter(lines)))
    assert found == [
        {
            "log_level": "warning",
            "event": "sending again",
            "pipeline": "p",
            "micro_batch": 7,
            "at": "2026-01-02T03:04:05.000000+00:00",
        }
    ]
    assert passed == ["WARN of Spark's\n", '{"timestamp":\n']
