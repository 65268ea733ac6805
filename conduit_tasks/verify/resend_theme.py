"""The theme `resend` of `themes`: four kinds of trouble for what is sent again, in turn."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from conduit_tasks.verify.actor import Aim
from conduit_tasks.verify.classes import (
    BROKEN,
    CLONED,
    FAILED,
    FILTERED,
    LATE_FAILED,
    REFUSED,
    SKIPPED,
    SPOILED,
    STUBBORN,
)

if TYPE_CHECKING:
    from conduit_tasks.verify.scenario import Scenario


def resend(s: Scenario, random: Random) -> None:
    """Has an operator redrive and replay, in processes that die and stand still; Redis forgets what they did."""
    s.resends, s.strict, s.wide = True, False, False
    drawn = [c for c in s.classes if c in (FILTERED, FAILED, LATE_FAILED, CLONED, SKIPPED, BROKEN)]
    s.classes = [*random.sample([REFUSED, SPOILED, STUBBORN], random.randint(1, 3)), *drawn]
    s.parks, s.queued = (kind := random.random()) < 0.6, kind > 0.85
    s.order = "key" if s.parks else s.order
    s.memory.busy = 0.0
    s.own_disk = random.random() < 0.6
    s.retention = "24h" if s.own_disk or s.queued else s.retention
    s.batch, s.more = random.choice([3, 8, 1000]), random.choice([1, 2])
    # Most of the trouble is for the resends: without letters there are none.
    s.rates = replace(s.rates, crash=0.001, power=0.0005, forget=0.0005 if s.own_disk else 0.0)
    s.portion = random.choice([2, 2, 4, 1000])
    _RESENDS[s.seed // 2 % len(_RESENDS)](s, random)


def _anywhere(s: Scenario, random: Random) -> None:
    """Has resends die, stand still and be forgotten anywhere."""
    points = ["claim", "settle", "mark", "unpark", "dispatch", "replay_confirm", "replay_end", "write out/"]
    fates = ["before", "after", "after", "long pause"]
    s.aims = [Aim(what, "resend", random.randint(1, 3), random.choice(fates)) for what in random.sample(points, 3)]
    if s.own_disk:
        points = ["mark", "release", "unpark", "replay_confirm", "replay_end"]
        s.aims += [Aim(what, "resend", random.randint(1, 3), "forget") for what in random.sample(points, 3)]


def _forgotten_portions(s: Scenario, random: Random) -> None:
    """Has Redis forget portions of replays that go on: what was before them, their lease too, it has fsynced, as each
    portion takes seconds."""
    s.own_disk, s.retention, s.portion, s.replays = True, "24h", 2, 0.8
    s.unconfirmed, s.memory.slow = 1, 0.8
    s.rates = replace(s.rates, crash=0.0, power=0.0, pause=0.0, forget=0.0)
    s.aims = [Aim("replay_confirm", "resend", n, "forget") for n in random.sample(range(2, 12), 4)]


def _half_portions(s: Scenario, random: Random) -> None:
    """Has replays die in the middle of a portion, of which each record is told by itself."""
    s.unconfirmed = s.untold = 1
    s.portion, s.replays = 1000, 0.8
    s.aims = [
        Aim("replay_confirm", "resend", n, random.choice(["before", "after"])) for n in random.sample(range(2, 12), 4)
    ]


def _broken_claims(s: Scenario, random: Random) -> None:
    """Has redrives die, or stand still, between the claim of letters and their end."""
    s.replays = 0.0
    s.aims = [Aim("settle", "resend", n, random.choice(["before", "before", "long pause"])) for n in (1, 2, 3)]
    s.aims += [Aim("write out/", "resend", random.randint(1, 2), "before")]


_RESENDS = (_anywhere, _forgotten_portions, _half_portions, _broken_claims)
