"""Themes of the odd seeds, in turn, so that each theme runs often enough in any hundred seeds.

A theme changes the drawn scenario so that one kind of fault happens in nearly every history of it; the rest stays as
drawn. Even seeds have none, except those of `_EVEN`. A fault that a guarantee is meant for is found by its theme, not
by a lucky seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from conduit_tasks.topology import Node
from conduit_tasks.verify.actor import Aim, Rates
from conduit_tasks.verify.classes import (
    CLONED,
    DEADLY,
    FAILED,
    REFUSED,
    STUBBORN,
)
from conduit_tasks.verify.resend_theme import resend

if TYPE_CHECKING:
    from conduit_tasks.verify.scenario import Scenario


def _restage(s: Scenario, random: Random) -> None:
    """Drops staged data before it is sealed, so that it is numbered again; a process that looked before another one
    staged comes after it."""
    s.sources = ["a", "b"]
    s.pipeline_processors = True
    s.strict = False
    s.aims = [Aim("stage", "sources.", random.randint(1, 3), "the operator stops by force and starts")]
    s.aims += [Aim("acquire", "sources.", n, "long pause") for n in (2, 5)]


def _collect(s: Scenario, random: Random) -> None:
    """Makes much be collected while some destinations lag far behind others."""
    s.strict = False
    s.retention, s.batch, s.lag = "0s", 3, 50
    s.stored = False
    s.unconfirmed = s.untold = 1
    s.few, s.wide = False, True
    slow = s.destinations[-1]
    s.aims = [Aim("confirm", Node.destination(slow), n, "before") for n in (1, 2, 3)]
    s.aims += [Aim("end_collect", "", random.randint(1, 3), "before")]


def _trip(s: Scenario, random: Random) -> None:
    """Sets the default nack window: the first nack stops the pipeline, until the operator has fixed its cause."""
    s.strict = True
    s.batch, s.unconfirmed = random.choice([8, 15]), random.choice([1, 4, 8])
    if random.random() < 0.25:
        s.classes = [STUBBORN, REFUSED]
        return
    # No other faults: records that arrived before the trip are not sent again after it, except those in flight.
    s.classes, s.sources, s.more, s.batch, s.untold = [REFUSED], ["a"], 1, 1000, 1000
    s.quiet, s.few, s.unconfirmed = 10, False, random.choice([1, 2])
    s.rates, s.aims, s.memory.lossy, s.memory.busy = Rates(0, 0, 0, 0, 0.1), [], 0.0, 0.0
    # At once, so that deliveries are reported together with the nack.
    s.memory.slow = 0.0


def _power(s: Scenario, random: Random) -> None:
    """Cuts the machine's power at confirms."""
    s.strict = False
    s.rates = replace(s.rates, power=0.005)
    s.aims = [Aim("confirm", Node.destination(d), n, "power") for d in ("file", "table") for n in (2, 4)]


def _torn(s: Scenario, random: Random) -> None:
    """Kills holders right before a write, and between a write and its confirm."""
    s.strict, s.few = False, True
    s.aims = [Aim("write out/", "destinations.few", n, "before") for n in (1, 2)]
    s.aims += [Aim("confirm", "destinations.file", n, "before") for n in (1, 3)]
    s.aims += [Aim("confirm", "destinations.web", random.randint(1, 3), "before")]


def _attempts(s: Scenario, random: Random) -> None:
    """Pauses an executor; another one is given the same task, and the first one wakes up."""
    s.attempts, s.strict, s.few = True, False, False
    s.classes = [c for c in s.classes if c not in (DEADLY, CLONED)]
    s.sources, s.more, s.batch, s.lag = ["a"], 1, 1000, None
    s.quiet = 20
    s.unconfirmed = s.untold = 1
    s.memory.busy = s.memory.lossy = 0.0
    s.rates = replace(s.rates, crash=0.001, power=0.0, pause=0.0, forget=0.0)
    s.aims = [
        Aim(
            "confirm", "destinations.web attempt 1", random.randint(1, 3), random.choice(["short pause", "long pause"])
        ),
        Aim(random.choice(["write out/", "confirm"]), "destinations.file attempt 1", 1, "short pause"),
    ]


def _queue(s: Scenario, random: Random) -> None:
    """Makes the sources queues, which cannot be read again: a settled message is gone."""
    s.queued, s.strict = True, False
    if random.random() > 0.25:
        # A deadly record, for certain.
        s.classes, s.quiet = [DEADLY, *(c for c in s.classes if c != DEADLY)], random.randint(1, 3)
    s.stored = random.random() < 0.5
    s.own_disk = random.random() < 0.5
    s.retention = "24h" if s.own_disk else s.retention
    s.rates = replace(s.rates, forget=0.01 if s.own_disk else 0.0, power=0.002)
    s.aims += [
        Aim("delete in", "", random.randint(1, 3), random.choice(["after", "forget" if s.own_disk else "after"]))
    ]


def _older(s: Scenario, random: Random) -> None:
    """Puts an older copy of Redis back, which knows some of the dead letters."""
    _queue(s, random)
    s.classes = [FAILED, REFUSED, *(c for c in s.classes if c not in (FAILED, REFUSED, DEADLY))]
    s.sources, s.more, s.quiet = ["a"], 3, 0
    s.own_disk, s.retention, s.batch, s.lag = True, "24h", 3, random.choice([None, 50])
    s.stored = random.random() < 0.7
    s.rates = replace(s.rates, forget=0.0, power=0.0)
    s.aims = [
        Aim("seal", "", random.randint(1, 2), "a copy of Redis is made"),
        Aim("seal", "", random.randint(3, 4), "an older copy of Redis is put back"),
    ]


def _clocks(s: Scenario, random: Random) -> None:
    """Makes clocks jump by an hour; in most seeds Redis' clock goes back, and a process that holds a lease by the
    former time dies."""
    s.strict = False
    holders = [*_HOLDERS, ""]
    kind = holders[s.seed // (2 * len(_ODD)) % len(holders)]
    if kind:
        what, who, most = _HOLDERS[kind]
        # A stop by force ends every lease.
        s.attempts, s.unattended = kind == "executor", True
        s.classes = [c for c in s.classes if c != DEADLY]
        s.rates = replace(s.rates, crash=0.001, power=0.0, pause=0.0, forget=0.0)
        s.aims = [Aim(what, who, random.randint(1, most), "Redis' clock jumps back, and a process dies")]
        return
    which = random.choice(["Redis'", "the machine's"])
    s.aims = [
        Aim(random.choice(["acquire", "confirm", "stage"]), "", random.randint(1, 4), f"{which} clock jumps {way}")
        for way in random.sample(["ahead", "back"], random.choice([1, 2]))
    ]


_HOLDERS = {
    "delivery": ("acquire", "destinations.", 2),
    "executor": ("attempt", "destinations.", 1),
    "reading": ("acquire", "sources.", 1),
}
"""Holders of a lease → the operation that gives it, the actors that call it, and the last such call to aim at."""


def _full(s: Scenario, random: Random) -> None:
    """Makes Redis reach its maxmemory, and stay there until the work in progress has ended."""
    s.strict = s.own_disk = False
    s.batch, s.lag = 5, 50
    s.rates = replace(s.rates, forget=0.0, power=0.0)
    s.aims = [Aim(random.choice(["seal", "stage", "confirm", "acquire"]), "", random.randint(1, 4), "Redis is full")]


def _sizes(s: Scenario, random: Random) -> None:
    """Makes records of some bytes to hundreds of KB, of which few may be held together."""
    s.large, s.strict = True, False
    s.chunk = random.choice([2_000, 60_000, 300_000])
    s.batch = 1000


def _silence(s: Scenario, random: Random) -> None:
    """Makes the receiver take records and never answer, and connections never end."""
    s.strict = False
    s.memory.silent, s.memory.endless = 0.1, 0.5
    s.memory.busy = 0.0


def _vanish(s: Scenario, random: Random) -> None:
    """Removes a file between the plan and its read: the setting skips it, or the operator acts."""
    s.sources, s.strict, s.own_disk = ["a", "lost"], False, False
    s.classes = [c for c in s.classes if c != DEADLY]
    s.batch, s.lag, s.more = random.choice([3, 5]), random.choice([None, 50]), 2
    s.vanishing = random.choice(["skip", "put back", "put back", "forget"])
    s.rates = replace(s.rates, forget=0.0, power=0.0)
    # Its first lease is the one for reading; some of the later ones are for the plan, or a seal.
    s.aims = [Aim("acquire", "sources.lost", random.choice([1, 1, 1, 4]), "a source's file is gone")]
    s.aims += [Aim("stage", "sources.", random.randint(1, 3), "before")]


def _handover(s: Scenario, random: Random) -> None:
    """Makes runs last and take over from each other, while processes on both sides of a handover die or stand still."""
    s.lasts = random.choice([4.0, 6.0, 10.0])
    s.strict, s.more, s.lag = False, 2, random.choice([None, 50])
    s.classes = [c for c in s.classes if c != DEADLY]
    s.batch, s.budget = random.choice([3, 8, 1000]), min(s.budget, 8)
    s.rates = replace(s.rates, switch=0.02)
    both, first = random.randint(1, 3), s.sources[0]
    s.aims = random.sample(
        [
            Aim("begin_run", "plan", both, random.choice(["before", "after"])),
            Aim("ready", "", random.randint(2, 9), random.choice(["before", "after", "long pause"])),
            Aim("ready", "destinations.", random.randint(2, 6), random.choice(["before", "after", "long pause"])),
            Aim("at_work", "", random.randint(3, 20), random.choice(["before", "after", "long pause"])),
            Aim("renew", "destinations.", both, random.choice(["after", "long pause"])),
            Aim("confirm", f"run-{both}/destinations.", 2, random.choice(["before", "long pause"])),
            Aim("acquire", f"run-{both + 1}/destinations.", 1, random.choice(["after", "long pause"])),
            Aim("release", "destinations.", both, random.choice(["before", "long pause"])),
            Aim("XREAD", "destinations.", random.randint(5, 60), "long pause"),
            Aim("XREAD", Node.source(first), random.randint(5, 60), "long pause"),
            Aim("stage", f"run-{both}/sources.", 2, random.choice(["before", "long pause"])),
        ],
        4,
    )


def _divided(s: Scenario, random: Random) -> None:
    """Has several tasks deliver to a receiver and to a folder; the pipeline's file is changed in the middle so that one
    task writes at both, and back."""
    s.few, s.strict, s.lag = True, False, random.choice([None, 50])
    s.bulk, s.tasks = random.choice(["key", "partition", "none"]), random.choice([2, 3, 4])
    s.sources, s.more = ["a", "b"], 3
    s.classes = [c for c in s.classes if c != DEADLY]
    s.batch, s.attempts = random.choice([30, 60]), random.random() < 0.3
    s.unconfirmed, s.untold = random.choice([1, 2]), random.choice([1, 4])
    s.rates = replace(s.rates, power=min(s.rates.power, 0.0005))
    who, other = random.sample(["destinations.few", "destinations.web"], 2)
    s.aims = [
        Aim("confirm_shard", who, random.randint(1, 3), "the file is changed, and a process dies"),
        Aim("confirm", who, random.randint(4, 7), "the file is changed, and a process dies"),
        Aim(
            random.choice(["confirm_shard", "whole"]),
            other,
            random.randint(4, 6),
            "the file is changed, and a process dies",
        ),
    ]
    s.aims += random.sample(
        [
            Aim("confirm_shard", "destinations.few", random.randint(1, 3), random.choice(["before", "after"])),
            Aim("confirm_shard", "destinations.", random.randint(1, 4), random.choice(["before", "long pause"])),
            Aim("rename out/few", "destinations.few", random.randint(1, 4), random.choice(["before", "after"])),
            Aim("whole", "destinations.", random.randint(1, 3), random.choice(["before", "after", "long pause"])),
            Aim("divide", "destinations.", random.randint(1, 2), random.choice(["after", "long pause"])),
            Aim("merge", "destinations.", 1, random.choice(["before", "after", "long pause"])),
            Aim("vote", "destinations.", random.randint(1, 4), random.choice(["before", "after", "long pause"])),
        ],
        3,
    )


def _together(s: Scenario, random: Random) -> None:
    """Has several micro-batches under way at once at the receiver, to whom nothing is in order."""
    s.order, s.tasks, s.bulk, s.few = "none", random.choice([2, 3, 4]), "", False
    s.batch, s.more = random.choice([3, 5, 8]), 3
    s.lag = 8 * s.batch
    # Not each micro-batch has records in all lanes, so that a younger one may be whole first.
    s.least = random.choice([1, 2, s.batch // 2, s.batch])
    s.attempts = random.random() < 0.5
    s.unconfirmed, s.untold = random.choice([1, 2]), random.choice([1, 4])
    s.rates = replace(s.rates, power=min(s.rates.power, 0.0005))
    s.aims = random.sample(
        [
            Aim("together", "destinations.web", random.randint(1, 2), random.choice(["before", "after", "long pause"])),
            Aim("whole", "destinations.web", random.randint(1, 8), random.choice(["before", "after", "long pause"])),
            Aim("whole", "destinations.web", random.randint(3, 12), random.choice(["before", "after", "long pause"])),
            Aim("confirm_shard", "destinations.web", random.randint(1, 8), random.choice(["before", "after"])),
            Aim("confirm_shard", "destinations.web", random.randint(3, 16), "long pause"),
            Aim("confirm_shard", "destinations.web", random.randint(2, 9), "the file is changed, and a process dies"),
            Aim("whole", "destinations.web", random.randint(1, 6), "the file is changed, and a process dies"),
            Aim("attempt", "destinations.web", random.randint(2, 8), random.choice(["before", "after", "long pause"])),
            Aim("vote", "destinations.web", random.randint(1, 4), random.choice(["before", "after", "long pause"])),
        ],
        4,
    )


THEMES: dict[str, Callable[[Scenario, Random], None]] = {
    "restage": _restage,
    "collect": _collect,
    "trip": _trip,
    "power": _power,
    "torn": _torn,
    "attempts": _attempts,
    "queue": _queue,
    "older": _older,
    "clocks": _clocks,
    "full": _full,
    "sizes": _sizes,
    "silence": _silence,
    "vanish": _vanish,
    "handover": _handover,
    "resend": resend,
    "divided": _divided,
    "together": _together,
}
"""Name → the function that changes the drawn scenario."""
_EVEN = {4: "divided", 6: "handover", 9: "resend", 11: "resend", 12: "together"}
"""Themes that were added later: they have some of the even seeds, by the turn of the odd seed behind it, so that every
other seed stays as it was."""
_ODD = [name for name in THEMES if name not in _EVEN.values()]


def theme_of(seed: int) -> str:
    """Returns the theme of a seed; empty: none."""
    turn = seed // 2 % len(_ODD)
    return _ODD[turn] if seed % 2 else _EVEN.get(turn, "")


def seeds_of(theme: str, first: int = 1) -> Iterator[int]:
    """Yields the seeds of a theme from `first` on; all seeds if it is empty. Raises ValueError if it is unknown."""
    if theme and theme not in THEMES:
        raise ValueError(f"no theme {theme}: there are {', '.join(THEMES)}")
    seed = first
    while True:
        if not theme or theme_of(seed) == theme:
            yield seed
        seed += 1
