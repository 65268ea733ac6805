"""The Airflow side: DAG factory, submit operator, tasks; for DAGs written by hand `ConduitPipeline`,
`DeliveredSensor` and `ConduitHook` (docs/your-dags.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_tasks.airflow.api_hook import ConduitHook
    from conduit_tasks.airflow.group import ConduitPipeline
    from conduit_tasks.airflow.sensor import DeliveredSensor

__all__ = ["ConduitHook", "ConduitPipeline", "DeliveredSensor"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and nothing before: the modules of this package are imported one by one, too."""
    if name == "ConduitHook":
        from conduit_tasks.airflow.api_hook import ConduitHook

        return ConduitHook
    if name == "ConduitPipeline":
        from conduit_tasks.airflow.group import ConduitPipeline

        return ConduitPipeline
    if name == "DeliveredSensor":
        from conduit_tasks.airflow.sensor import DeliveredSensor

        return DeliveredSensor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
