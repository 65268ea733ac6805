"""One pipeline drawn from a seed, its events, and the expected outcome of each: the oracle.

An event is `{"s": source, "n": number, "k": key, "c": class}`; its class decides its outcome (`classes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from conduit_tasks.verify.actor import Aim, Rates
from conduit_tasks.verify.aims import drawn_aims
from conduit_tasks.verify.classes import (
    BROKEN,
    CLONED,
    DEADLY,
    FAILED,
    FILTERED,
    LATE_FAILED,
    LATE_FILTERED,
    PLAIN,
    REFUSED,
    SKIPPED,
    SPOILED,
    STUBBORN,
)
from conduit_tasks.verify.receiver import Memory
from conduit_tasks.verify.scenario_file import text_of
from conduit_tasks.verify.themes import THEMES, theme_of

LOST = "lost"
"""The source whose file is removed after it was planned."""


@dataclass
class Scenario:
    """A pipeline and its events. `text`: the pipeline file. `events`: per source, in its order; `written`: the number
    of them in its file."""

    seed: int
    sources: list[str]
    classes: list[int]
    pipeline_processors: bool
    few: bool
    strict: bool
    """The default nack window: the first nack stops the pipeline until the operator fixes its cause and starts it."""
    stored: bool
    order: str
    unconfirmed: int
    untold: int
    isolate: bool
    lag: int | None
    batch: int
    retention: str
    rates: Rates
    aims: list[Aim]
    budget: int
    memory: Memory
    own_disk: bool
    """Whether Redis runs on the machine that loses power, and so forgets at most its last second."""
    wide: bool
    """A nack window that tolerates nearly everything, in place of none."""
    queued: bool = False
    """Whether its sources are queues: a message comes once, unless nobody settles it, and in no order."""
    attempts: bool = False
    """Whether deliveries run in executors of their own (`executors`)."""
    unattended: bool = False
    """Whether no operator stops it."""
    chunk: int = 64 << 20
    """Limit of the bytes that are held together."""
    large: bool = False
    """Whether records have up to hundreds of KB."""
    quiet: int = 0
    """Number of plain events at the beginning of each source; the next event is of the first class. At least as many
    follow."""
    more: int = 1
    """Factor of the number of events."""
    vanishing: str = ""
    """Action if the file of source `lost` is gone: skip it by the setting, put it back, or forget it."""
    gone: tuple[int, int] | None = None
    """Set if the file of `lost` is gone: the least and the most of its events that had been read."""
    planned: int = 0
    """Number of its events that were planned by then: a process that has it open reads on to there."""
    unread: bool = False
    """Whether something of it was planned and not read, and nobody has acted since."""
    lasts: float = 0.0
    """Seconds that its runs last, until the next one takes over; 0: a run ends when nothing is left."""
    resends: bool = False
    """Whether an operator redrives and replays; what fails records can be fixed (`fixable`)."""
    portion: int = 1000
    """Limit of records that are sent again under one lease."""
    replays: float = 0.4
    """Share of replays in what the operator sends again."""
    parks: bool = False
    """Whether keys are parked behind dead letters."""
    tasks: int = 1
    """Tasks that deliver a micro-batch to `web`, and to `few` if that is a folder, at most."""
    least: int = 1
    """The least records of a micro-batch per task."""
    bulk: str = ""
    """Its `order-by` if `few` is a folder of Parquet files, written by several tasks; empty: a file of lines."""
    alone: bool = False
    """Whether the pipeline file has `web` and `few` written by one task only, as its settings are now."""
    changed: bool = False
    """Whether the pipeline file was changed since the beginning."""
    theme: str = ""
    """Theme of the seed (`themes`); empty: everything as it is drawn."""
    text: str = ""
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)

    @property
    def forgetful(self) -> bool:
        """Returns whether Redis may forget something: then there may be more duplicates."""
        return self.own_disk or self.rates.forget > 0

    @property
    def window(self) -> bool:
        """Returns whether nacks before the fan-out are counted in a window."""
        return self.strict or self.wide

    @property
    def destinations(self) -> list[str]:
        return ["file", "web", "table", *(["few"] if self.few else [])]

    @property
    def wanted(self) -> frozenset[int]:
        """Returns the keys of the events that `few` wants."""
        return frozenset({1, 2, 3}) if self.bulk else frozenset({1})

    @property
    def processed(self) -> bool:
        """Returns whether `few` has the processors of `file`: they may change keys, so not with an order by them."""
        return self.bulk in ("partition", "none")

    # -- the expected outcome of an event -----------------------------------------------------------------------

    def before_fan_out(self, event: dict[str, Any]) -> str:
        """Returns "" if the event reaches the fan-out, else filtered or nacked."""
        c = event["c"]
        if c in (FAILED, BROKEN, DEADLY):
            return "nacked"
        if c == FILTERED:
            return "filtered"
        if self.pipeline_processors and c in (LATE_FILTERED, LATE_FAILED):
            return "filtered" if c == LATE_FILTERED else "nacked"
        return ""

    def at(self, destination: str, event: dict[str, Any]) -> str:
        """Returns the event's outcome there: delivered, nacked, filtered, or "" if it does not come there."""
        if self.before_fan_out(event) or (destination == "few" and event["k"] not in self.wanted):
            return ""
        processed = destination == "file" or (destination == "few" and self.processed)
        if processed and event["c"] == SKIPPED:
            return "filtered"
        if processed and event["c"] == SPOILED and not self.resends:
            return "nacked"
        if destination == "web" and event["c"] == REFUSED and not (self.strict or self.resends):
            return "nacked"
        return "delivered"

    def copies(self, event: dict[str, Any]) -> int:
        """Returns the number of rows that the event becomes."""
        return 2 if self.pipeline_processors and event["c"] == CLONED else 1

    def fixable(self, event: tuple[str, int]) -> bool:
        """Returns whether the event, (source, n), is one that fails only until its cause is fixed."""
        return self.resends and self.events[event[0]][event[1]]["c"] in (REFUSED, SPOILED, STUBBORN)

    # -- the sources --------------------------------------------------------------------------------------------

    def grow(
        self,
        home: Path,
        random: Random,
        send: Callable[[str, str, str], None],
        everything: bool = False,
        most: int | None = None,
    ) -> None:
        """Adds some of the next events to the sources: up to `most` to each, or a micro-batch. `send`: to a queue."""
        for source in self.sources:
            if source == LOST and self.gone is not None:
                continue
            first = self.written[source]
            more = len(self.events[source]) - first
            count = more if everything else min(more, random.randint(0, most or self.batch))
            path = home / "data" / f"{source}.jsonl"
            lines = [line(event) for event in self.events[source][first : first + count]]
            if self.queued:
                for n, text in enumerate(lines, first):
                    send(source, f"{source}-{n}", text)
            elif lines:
                with path.open("a") as file:
                    file.writelines(text + "\n" for text in lines)
            self.written[source] = first + count


def line(event: dict[str, Any]) -> str:
    """Returns an event as its source gives it."""
    return "{broken" if event["c"] == BROKEN else json.dumps(event)


def draw(seed: int, events: int, batch: int | None = None) -> Scenario:
    """Draws the scenario of a seed with about `events` events; `batch`: size of its micro-batches in place of the
    seed's."""
    random = Random(f"scenario {seed}")
    chance = random.random
    strict = chance() < 0.15
    classes = [c for c in range(10) if chance() < 0.6 and c != DEADLY]
    if chance() < 0.15:
        classes.append(DEADLY)
    if strict:
        # Only failures that an operator can fix: the receiver refuses until then.
        classes = [c for c in classes if c in (FILTERED, LATE_FILTERED, CLONED, SKIPPED, REFUSED)]
    forgetful = chance() < 0.2
    drawn = random.choice([3, 5, 8, 15, 1000])
    batch = drawn if batch is None else batch
    scenario = Scenario(
        seed=seed,
        sources=["a", "b", "c"][: random.choice([1, 2, 2, 3])],
        classes=classes,
        pipeline_processors=chance() < 0.5,
        few=chance() < 0.5,
        strict=strict,
        stored=chance() < 0.3,
        order=random.choice(["partition", "partition", "key", "none"]),
        unconfirmed=random.choice([1, 2, 4, 8]),
        untold=random.choice([1, 4, 1000]),
        isolate=chance() < 0.4,
        lag=random.choice([None, None, batch, 3 * batch, 50]),
        batch=batch,
        retention="24h" if forgetful or chance() < 0.5 else "0s",
        rates=Rates(
            crash=random.choice([0.001, 0.003, 0.01]),
            power=random.choice([0.0, 0.0005, 0.002]),
            pause=random.choice([0.0, 0.001, 0.003]),
            double=random.choice([0.0, 0.01]),
            switch=random.choice([0.02, 0.1, 0.3]),
            forget=0.002 if forgetful and chance() < 0.5 else 0.0,
        ),
        aims=drawn_aims(Random(f"aims {seed}")),
        budget=random.choice([4, 8, 14]),
        memory=Memory(
            Random(f"receiver {seed}"),
            refused=frozenset({REFUSED}),
            lossy=random.choice([0.0, 0.05]),
            busy=random.choice([0.0, 0.0, 0.2]),
        ),
        own_disk=forgetful,
        wide=Random(f"window {seed}").random() < 0.5,
    )
    scenario.theme = theme_of(seed)
    if scenario.theme:
        THEMES[scenario.theme](scenario, Random(f"theme {seed}"))
    if not scenario.parks and scenario.tasks == 1:
        scenario.tasks = Random(f"tasks {seed}").choice([1, 1, 2, 3, 4])
    if not scenario.theme and scenario.few and scenario.tasks > 1:
        scenario.bulk = Random(f"bulk {seed}").choice(["key", "partition", "none"])
    _events(scenario, random, events * scenario.more)
    scenario.text = text_of(scenario)
    return scenario


def _events(scenario: Scenario, random: Random, count: int) -> None:
    deadly = 0
    for source in scenario.sources:
        rows = []
        for n in range(max(2 * scenario.quiet, random.randint(1, max(1, 2 * count // len(scenario.sources))))):
            c = random.choice([PLAIN, PLAIN, PLAIN, *scenario.classes])
            if scenario.quiet and n == scenario.quiet and scenario.classes:
                c = scenario.classes[0]
            if n < scenario.quiet or (c == DEADLY and (deadly or not n)):
                c = PLAIN
            row: dict[str, Any] = {"s": source, "n": n, "k": random.randrange(4), "c": c}
            if scenario.large:
                # From nothing to some hundred KB, each size as often as its half.
                row["p"] = "x" * int(2 ** random.uniform(0, 18.3))
            if c == DEADLY:
                deadly, row["deadly"] = 1, True
            rows.append(row)
        scenario.events[source] = rows
        scenario.written[source] = 0
