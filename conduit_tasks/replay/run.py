"""A whole replay in one process: what `conduit replay` does. The DAG calls the same steps task by task."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.replay.deliver import Outcome, count, deliver_replay
from conduit_tasks.replay.interval import ask
from conduit_tasks.replay.prepare import Prepared, prepare, read
from conduit_tasks.spool.spool import Spool


def replay(
    pipeline: str,
    start: str,
    end: str,
    destinations: Sequence[str],
    what: str,
    *,
    run: str,
    again: bool,
    wait: float,
    progress: Callable[[Prepared], None] = lambda _: None,
) -> list[Outcome]:
    """Prepares, and delivers to one destination after the other. A second call with the same `run` goes on; `again`:
    destinations that have ended begin anew. Raises what the two steps raise."""
    with opened(pipeline, run) as context:
        wanted = ask(context.pipeline, start, end, tuple(destinations), what)
        made = prepare(context, wanted, run, again=again, wait=wait)
        progress(made)
        return [deliver_replay(context, wanted, made, id, run, again=again, wait=wait) for id in wanted.destinations]


def look(
    pipeline: str, start: str, end: str, destinations: Sequence[str], what: str
) -> tuple[Prepared, dict[str, int]]:
    """What would go, per destination. Changes nothing."""
    with (
        opened(pipeline, "replay, dry run") as context,
        tempfile.TemporaryDirectory(prefix="conduit-replay-") as folder,
    ):
        wanted = ask(context.pipeline, start, end, tuple(destinations), what)
        spool = Spool(folder)
        made = read(context, spool, wanted, 1)
        return made, {id: count(context, spool, wanted, made, id) for id in wanted.destinations}
