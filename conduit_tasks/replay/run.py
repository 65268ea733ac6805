"""A whole replay in one process, as `conduit replay` runs it. The DAG calls the same steps task by task."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence

from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.replay.deliver import Replayed, deliver_replay
from conduit_tasks.replay.interval import Ask, ask
from conduit_tasks.replay.prepare import Prepared, prepare, prepared, read
from conduit_tasks.replay.select import count
from conduit_tasks.spool.spool import Spool


def replay(
    pipeline: str,
    start: str,
    end: str,
    destinations: Sequence[str],
    what: str,
    *,
    run: str,
    wait: float,
    progress: Callable[[Prepared], None] = lambda _: None,
) -> list[Replayed]:
    """Prepares a replay, and delivers it to one destination after the other. A second call with the same `run` goes on;
    a call after everything it asks for has ended begins again. Raises what the two steps raise."""
    with opened(pipeline, run) as context:
        wanted = ask(context.pipeline, start, end, tuple(destinations), what)
        # Read before any waiting: if two operators call at once, the second does not repeat the first one's replay.
        generation = _generation(context, wanted, run)
        made = prepare(context, wanted, run, generation=generation, wait=wait)
        progress(made)
        return [
            deliver_replay(context, wanted, made, id, run, generation=generation, wait=wait, turn_wait=wait)
            for id in wanted.destinations
        ]


def _generation(context: Context, wanted: Ask, run: str) -> str:
    found = prepared(context, run)
    if found is None:
        return "1"
    shares = [context.broker.replays.share(id, run) for id in wanted.destinations]
    ended = all(s is not None and s.finished and s.prepared == f"{found.token}-{wanted.what}" for s in shares)
    return str(int(found.generation or 0) + 1) if ended else found.generation


def look(context: Context, wanted: Ask) -> tuple[Prepared, dict[str, int]]:
    """Returns what would be sent: the prepared records, and their number per destination. Changes nothing."""
    with tempfile.TemporaryDirectory(prefix="conduit-replay-") as folder:
        spool = Spool(folder)
        made = read(context, spool, wanted, 1)
        return made, {id: count(context, spool, wanted, made, id) for id in wanted.destinations}
