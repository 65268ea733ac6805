"""Ranges that a run delivered to a destination, kept in case its task is cleared later: the newest runs in Redis, the
others in the spool, so that Redis keeps as much after a year as after an hour.

    <spool>/<pipeline>/runs/<destination>/<milliseconds>-<name>.json     {"<run>": {"<micro-batch>": "<ranges>"}}
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

import orjson

from conduit_tasks.errors import SpoolError
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.spool.names import names
from conduit_tasks.spool.spool import folder_name

log = logging.getLogger(__name__)

HELD = 64
"""Limit of a destination's runs in Redis; beyond it, all but the newest half go to the spool at once."""
TOLD = 7
"""Multiple of the spool's retention for which a task that is cleared too late is told so."""


def finish(context: Context, destination: str, run: str) -> None:
    """Records that a run's task ended well after it delivered something: if cleared later, it delivers again."""
    retention = context.pipeline.spool_retention
    if not retention:
        return
    broker, spool = context.broker, context.spool
    known = broker.redeliveries.finish_run(destination, run)
    if len(known) <= HELD:
        return
    oldest = sorted(known, key=lambda each: known[each])[: len(known) - HELD // 2]
    folder = _folder(context, destination)
    try:
        of = broker.redeliveries.confirmed_by(destination, oldest)
        spool.put(f"{folder}/{known[oldest[-1]]:015d}-{secrets.token_hex(4)}.json", orjson.dumps(of))
        broker.redeliveries.forget_runs(destination, oldest)
        expired = int((broker.access.now() - TOLD * retention) * 1000)
        for name in _names(context, folder):
            if int(name.partition("-")[0]) < expired:
                spool.remove(f"{folder}/{name}")
    except SpoolError as error:
        log.warning("what earlier runs delivered to %s stays in Redis for now: %s", destination, error)


def finished(context: Context, destination: str, run: str) -> bool:
    """Returns whether `finish` was called for this run, which Redis knows again from then on; a cleared task that had
    failed merely resumes. Raises SpoolError."""
    broker = context.broker
    if broker.redeliveries.run_finished(destination, run):
        return True
    for id in [destination, *names(context.spool, context.pipeline.id).get(destination, ())]:
        folder = _folder(context, id)
        for name in sorted(_names(context, folder), reverse=True):
            found = orjson.loads(context.spool.get(f"{folder}/{name}"))
            if run in found:
                broker.redeliveries.remember_run(destination, run, found[run], context.pipeline.spool_retention)
                return True
    return False


def _folder(context: Context, destination: str) -> str:
    return f"{folder_name(context.pipeline.id)}/runs/{folder_name(destination)}"


def _names(context: Context, folder: str) -> Iterator[str]:
    return (name for name, is_folder in context.spool.entries(folder) if not is_folder and name.endswith(".json"))
