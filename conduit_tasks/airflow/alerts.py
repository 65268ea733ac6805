"""Telling of alerts, those of the file or of the Variable `conduit_alerts`: calls their notifiers once for each broken
rule and each new issue, and once more when a rule holds again.

`plan` checks them, so runs that find no work check them too, and so do the acks, also after a destination has failed,
and a task that has failed for good. Each breach is told once, and once more when it is over, however many runs see it.
Alerts are bookkeeping: an error in them is logged, and the next run tells.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conduit_tasks.airflow.alert_rules import findings
from conduit_tasks.airflow.issue_alerts import tell_issues
from conduit_tasks.errors import BrokerUnavailable, ConfigError
from conduit_tasks.include import made_notifier

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

RULES = ("lag", "dead_letters", "no_data", "issues")
"""Rules that an alert may have of its own."""
VARIABLE = "conduit_alerts"
"""Airflow Variable with the `alerts` (JSON) of pipelines that have none of their own."""


@contextmanager
def looking(pipeline_id: str, run_id: str) -> Iterator[None]:
    """Checks the deadlines when the block has ended, with or without an error; not if the broker is unavailable."""
    try:
        yield
    except BrokerUnavailable:
        raise
    except Exception:
        look(pipeline_id, run_id)
        raise
    look(pipeline_id, run_id)


def look(pipeline_id: str, run_id: str, task: Any = None) -> None:
    """Sends the alerts of a pipeline that are due; logs a warning if that fails. `task`: the context of a task that has
    ended; while it runs, Airflow knows it."""
    try:
        tell(pipeline_id, run_id, task)
    except Exception as error:  # noqa: BLE001 - no run fails by its alerts
        log.warning("deadlines of %s: %s: %s", pipeline_id, type(error).__name__, error)


def tell(pipeline_id: str, run_id: str, task: Any = None) -> None:
    """Sends the alerts that are due (`task`: see `look`). Raises ConfigError if the Variable is wrong."""
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.pipeline.load import get_pipeline

    pipeline = get_pipeline(pipeline_id)
    deadlines = any(d.deadline is not None for d in pipeline.destinations)
    alerts = [(n, alert) for n, alert in enumerate(_alerts(pipeline)) if deadlines or any(map(alert.get, RULES))]
    if not alerts:
        return
    with opened(pipeline, run_id) as context:
        for n, alert in alerts:
            for found in findings(context, alert):
                subject = f"{found.subject}|{n}:{alert['notifier']}"
                if not (nonce := context.broker.alerts.claim(subject, found.late)):
                    continue
                told = _notify(alert, found.about, task)
                context.broker.alerts.settle(subject, found.late, nonce, told=told)
        who = {f"{n}:{alert['notifier']}": alert for n, alert in alerts if alert.get("issues")}
        tell_issues(context, who, lambda name, about: _notify(who[name], about, task))


def _alerts(pipeline: Pipeline) -> list[Mapping[str, Any]]:
    if pipeline.alerts:
        return list(pipeline.alerts)
    from airflow.sdk import Variable
    from pydantic import TypeAdapter, ValidationError

    from conduit_tasks.pipeline.model import AlertKeys

    found = Variable.get(VARIABLE, default=None, deserialize_json=True)
    try:
        return [alert.model_dump() for alert in TypeAdapter(list[AlertKeys]).validate_python(found or [])]
    except ValidationError:
        raise ConfigError(
            f'the Airflow Variable {VARIABLE} must be a list such as [{{"notifier": "package.module.Class", '
            '"arguments": {"text": "{{ conduit.message }}"}}]'
        ) from None


def _notify(alert: Mapping[str, Any], about: Mapping[str, Any], task: Any) -> bool:
    """Calls the notifier and returns whether it succeeded."""
    try:
        notifier = made_notifier(alert["notifier"], alert["arguments"])
        notifier({**(_task_context() if task is None else dict(task)), "conduit": about})
    except Exception as error:  # noqa: BLE001 - a notifier may raise anything, and the run goes on
        log.warning("%s was not told that %s: %s: %s", alert["notifier"], about["message"], type(error).__name__, error)
        return False
    log.info("%s was told that %s", alert["notifier"], about["message"])
    return True


def _task_context() -> dict[str, Any]:
    """Returns Airflow's task context, for templates; {} outside of a task."""
    from airflow.sdk import get_current_context

    try:
        return dict(get_current_context())
    except RuntimeError:
        return {}
