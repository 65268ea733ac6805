"""Cheap looks for work between two times of a pipeline's schedule, or for a run that should last and is over, and the
pace of wake-ups.

A look sees a level, not an event: records past the planned positions, and micro-batches that are read and not
delivered. So a lost wake-up comes again, and one that comes twice finds nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from conduit_tasks.connectors.base import Position
from conduit_tasks.connectors.capabilities import Watchable
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.pipeline.schedule import is_continuous
from conduit_tasks.topology import Pipeline, Wake

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.spool import Spool

log = logging.getLogger(__name__)

LONGEST = 300.0
"""Seconds between two wake-ups that achieve nothing, at most."""
TROUBLE = 60.0
"""Seconds at most until a source that could not be looked at is looked at again."""
OVER, YOUNG = 10.0, 30.0
"""Seconds without any node at work after which no run is taken to be under way; and seconds after a run's plan in which
its tasks may not have begun yet."""
LEFT = 60.0
"""Seconds without progress and without a wake-up after which the pipeline is woken for what a run left over."""


@dataclass(frozen=True)
class Look:
    """Result of one look. `news`: sources with something to read; `left`: something that was read is not delivered
    everywhere, or Redis has forgotten it; `over`: no run is under way of a pipeline that is to run without a pause;
    `progress`: differs from an earlier one if a run did something meanwhile."""

    news: tuple[str, ...] = ()
    left: bool = False
    progress: tuple[int, ...] = ()
    over: bool = False


class WakePace:
    """Pace of a pipeline's wake-ups: at once if there is news, but at least `pause` seconds after the last one; while
    nothing comes of it (a destination is down, the lag budget is used up) twice as long each time, up to LONGEST."""

    def __init__(self, pause: float) -> None:
        self._pause = self._delay = pause
        self._woken = float("-inf")
        self._moved = float("-inf")
        self._progress: tuple[int, ...] | None = None

    def wake(self, look: Look, now: float) -> str:
        """Returns why the pipeline is to be woken now, in words; or empty text. `now`: seconds of a monotonic clock."""
        if look.progress != self._progress:
            self._progress, self._moved, self._delay = look.progress, now, self._pause
        if not look.news and not look.left and not look.over:
            self._delay = self._pause
            return ""
        due = self._woken + self._delay
        if not look.news and not look.over:
            due = max(due, self._moved + LEFT, self._woken + LEFT)
        if now < due:
            return ""
        self._woken, self._delay = now, max(self._pause, min(2 * self._delay, LONGEST))
        if look.over:
            return "no run is under way"
        return f"new in {', '.join(look.news)}" if look.news else "something is not delivered yet"


class Watch:
    """Looks at one pipeline's sources and state. Both methods may block for as long as a server lets them wait; several
    threads may call them."""

    def __init__(
        self,
        pipeline: Pipeline,
        broker: Broker,
        sources: Mapping[str, Watchable],
        spool: Spool,
        *,
        own: bool = False,
        of_runs: bool = False,
    ) -> None:
        self.wake = pipeline.wake or Wake()
        self._pipeline, self._broker, self._sources = pipeline, broker, sources
        self._spool, self._own, self._of_runs = spool, own, of_runs
        self._positions: dict[str, Position] = {}
        self._forgot = False
        self._read: tuple[int, ...] | None = None
        self._alone = threading.Lock()
        self._idle: float | None = None
        self._alone_until: dict[str, tuple[float, float]] = {}

    @classmethod
    def open(cls, pipeline_id: str) -> Self:
        """Opens a watch by the pipeline's file as it is now. Raises ConfigError, BrokerUnavailable."""
        from conduit_tasks.broker.broker import Broker
        from conduit_tasks.connectors.registry import source_class
        from conduit_tasks.micro_batch.context import open_spool
        from conduit_tasks.redis_client.connection import connect
        from conduit_tasks.settings import settings

        pipeline = get_pipeline(pipeline_id)
        wanted = pipeline.wake.sources if pipeline.wake else ()
        watchable = [s.id for s in pipeline.sources if issubclass(source_class(s.plugin), Watchable)]
        ids = [id for id in watchable if not wanted or id in wanted]
        of_runs = is_continuous(pipeline)
        # The runs of a continuous pipeline look at the sources themselves.
        watched = {} if of_runs else _watched(pipeline, ids)
        broker = Broker(pipeline.id, connect(settings()))
        return cls(pipeline, broker, watched, open_spool(pipeline), own=True, of_runs=of_runs)

    def look(self) -> Look:
        """Returns what there is to do. Asks Redis and each source once, and the spool once if something moved; changes
        nothing.

        Raises ConduitError if Redis or the spool cannot be asked.
        """
        with self._alone:
            return self._look_at_runs() if self._of_runs else self._look()

    @classmethod
    def within(cls, context: Context) -> Self | None:
        """Opens a watch of all sources from within a run that lasts; None if one of them cannot be looked at cheaply.
        Closing it leaves the context's broker open."""
        from conduit_tasks.connectors.registry import source_class

        pipeline = context.pipeline
        if not all(issubclass(source_class(s.plugin), Watchable) for s in pipeline.sources):
            return None
        return cls(pipeline, context.broker, _watched(pipeline, [s.id for s in pipeline.sources]), context.spool)

    def _look_at_runs(self) -> Look:
        """Decides whether the run that should last is over: killed, failed, or the pipeline was started again."""
        now, _ = self._broker.runs.latest()
        if self._broker.access.field(self._broker.keys.pipeline, "status") not in (None, "running"):
            self._idle = None
            return Look()
        young = now is not None and not now.nodes and now.now - now.since < YOUNG
        if now is not None and (young or any(now.at_work(node) for node in now.nodes)):
            self._idle = None
        elif self._idle is None:
            self._idle = time.monotonic()
        over = self._idle is not None and time.monotonic() - self._idle >= OVER
        return Look(over=over, progress=(int(now.began * 1e6) if now else 0,))

    def _look(self) -> Look:
        keys, ids = self._broker.keys, [d.id for d in self._pipeline.destinations]
        (status, last, unsealed, sealed), *states = self._broker.access.read(
            ("HMGET", keys.pipeline, "status", "last", "unsealed", "sealed"),
            *(("HMGET", keys.destination(id), "cursor", "status") for id in ids),
        )
        if status not in (None, "running"):
            return Look()
        cursors = [int(cursor or 0) for cursor, _ in states]
        read = (int(last or 0), int(unsealed or 0), int(sealed or 0))
        if read != self._read:
            # Planned positions move with these; a source of many files has many of them.
            self._positions = {id: self._broker.positions.planned(id) for id in self._sources}
            # If Redis forgot its last moments, or is an older copy, the next run brings its state back.
            self._forgot = self._spool.sealed(self._pipeline.id, read[0] + 1) is not None
            self._read = read
        news = tuple(id for id in self._sources if self._has_news(id))
        behind = any(cursor < read[2] for cursor, (_, state) in zip(cursors, states, strict=True) if state != "stopped")
        return Look(news, behind or bool(read[1]) or self._forgot, (*read, *cursors))

    def _has_news(self, id: str) -> bool:
        """Returns whether a source has news; False if it cannot be looked at: it is then left alone for ever longer."""
        until, wait = self._alone_until.get(id, (0.0, 1.0))
        if time.monotonic() < until:
            return False
        try:
            found = self._sources[id].news(self._positions[id])
        except BrokerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are looked at
            log.warning(
                "%s: the source %s does not wake it: %s: %s", self._pipeline.id, id, type(error).__name__, error
            )
            self._alone_until[id] = (time.monotonic() + wait, min(2 * wait, TROUBLE))
            return False
        self._alone_until.pop(id, None)
        return found

    def close(self) -> None:
        """Closes the sources, and a broker of its own, once a look under way has ended."""
        with self._alone:
            for source in self._sources.values():
                source.close()
            if self._own:
                self._broker.close()


def _watched(pipeline: Pipeline, ids: Iterable[str]) -> dict[str, Watchable]:
    from conduit_tasks.connectors.sources import source_connector

    opened = {id: source_connector(pipeline, id) for id in ids}
    return {id: source for id, source in opened.items() if isinstance(source, Watchable)}
