"""List of the moments at which a crash or a pause hurts most; a seed draws three of them."""

from __future__ import annotations

from random import Random

from conduit_tasks.verify.actor import Aim

AIMS = (
    ("confirm", "destinations.", "before"),
    ("confirm", "destinations.", "after"),
    ("confirm", "destinations.", "long pause"),
    ("write out/", "destinations.", "long pause"),
    ("write out/", "destinations.", "before"),
    ("lock out/", "destinations.", "long pause"),
    ("stage", "", "long pause"),
    ("vote", "", "long pause"),
    ("seal", "", "long pause"),
    ("seal", "", "before"),
    ("begin_ack", "", "long pause"),
    ("commit_ack", "", "before"),
    ("begin_collect", "", "long pause"),
)
"""(operation, actor, fate) at which a crash or a pause hurts most: between a write and its confirm, between a check and
the action that follows it."""


def drawn_aims(random: Random) -> list[Aim]:
    """Draws three of them."""
    return [Aim(what, who, random.randint(1, 4), fate) for what, who, fate in random.sample(AIMS, 3)]
