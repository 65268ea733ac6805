"""Check of the Airflow connection that settings name, and of what it gives, where Airflow can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from conduit_tasks.pipeline.findings import Findings, Path

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Spec

CODE = "E216"


def with_connection(spec: Spec, settings: Mapping[str, str], report: Findings, path: Path) -> Mapping[str, str]:
    """Returns the settings with what their connection gives, and reports one that is missing or of another type. Where
    Airflow cannot be asked, or the connection is reported, some connection of the right type stands in for it."""
    from conduit_tasks.connections import SETTING, NotAsked
    from conduit_tasks.connectors.connection import named, resolved, sampled
    from conduit_tasks.errors import ConduitError

    if not named(spec, settings):
        return settings
    try:
        return resolved(spec, settings)
    except NotAsked:
        pass
    except ConduitError as error:
        report.add(CODE, (*path, "settings", SETTING), str(error))
    return sampled(spec, settings)


def connected(spec: Spec, settings: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the settings with what their connection gives, if Airflow can be asked and has it; otherwise as they are.
    What is wrong with it `with_connection` reports."""
    from conduit_tasks.connectors.connection import resolved
    from conduit_tasks.errors import ConduitError

    try:
        return resolved(spec, settings)
    except ConduitError:
        return settings
