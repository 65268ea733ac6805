"""Themes: what the odd seeds are about, one after the other, so that each is lived often enough in any hundred seeds.

A theme changes what was drawn so that one kind of trouble happens in nearly every history of it; the rest stays drawn.
Even seeds have none. A fault that a guarantee is meant for is found by its theme, not by a lucky number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from conduit_tasks.verify.classes import REFUSED, STUBBORN
from conduit_tasks.verify.world import Aim

if TYPE_CHECKING:
    from conduit_tasks.verify.scenario import Scenario


def _restage(s: Scenario, random: Random) -> None:
    """What was staged is dropped before it is sealed, and numbered again."""
    s.sources = ["a", "b"]
    s.pipeline_processors = True
    s.strict = False
    s.aims = [Aim("stage", "sources.", random.randint(1, 3), "the operator stops by force and starts")]


def _collect(s: Scenario, random: Random) -> None:
    """Much is collected while some destinations lag far behind others."""
    s.strict = False
    s.retention, s.batch, s.lag = "0s", 3, 50
    s.stored = False
    s.unconfirmed = s.untold = 1
    s.few, s.wide = False, True
    slow = s.destinations[-1]
    s.aims = [Aim("confirm", f"destinations.{slow}", n, "before") for n in (1, 2, 3)]
    s.aims += [Aim("end_collect", "", random.randint(1, 3), "before")]


def _trip(s: Scenario, random: Random) -> None:
    """The default nack window: the first nack stops the pipeline, until the operator has mended its cause."""
    s.strict = True
    s.classes = [STUBBORN, REFUSED]
    s.batch = random.choice([8, 15])
    s.unconfirmed = random.choice([1, 4, 8])


def _power(s: Scenario, random: Random) -> None:
    """The machine loses power right after something was confirmed."""
    s.strict = False
    s.rates = replace(s.rates, power=0.005)
    s.aims = [Aim("confirm", f"destinations.{d}", n, "power") for d in ("file", "table") for n in (2, 4)]


def _torn(s: Scenario, random: Random) -> None:
    """Holders die right before a write, and between a write and its confirm."""
    s.strict, s.few = False, True
    s.aims = [Aim("write out/", "destinations.few", n, "before") for n in (1, 2)]
    s.aims += [Aim("confirm", "destinations.file", n, "before") for n in (1, 3)]
    s.aims += [Aim("confirm", "destinations.web", random.randint(1, 3), "before")]


THEMES: dict[str, Callable[[Scenario, Random], None]] = {
    "restage": _restage,
    "collect": _collect,
    "trip": _trip,
    "power": _power,
    "torn": _torn,
}
"""Name → how it changes what was drawn."""


def theme_of(seed: int) -> str:
    """The theme of a seed; empty: none."""
    return list(THEMES)[seed // 2 % len(THEMES)] if seed % 2 else ""


def seeds_of(theme: str, first: int = 1) -> Iterator[int]:
    """The seeds of a theme from `first` on; all of them where it is empty. Raises ValueError on an unknown one."""
    if theme and theme not in THEMES:
        raise ValueError(f"no theme {theme}: there are {', '.join(THEMES)}")
    seed = first
    while True:
        if not theme or theme_of(seed) == theme:
            yield seed
        seed += 1
