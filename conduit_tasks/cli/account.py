"""Account of a run, at the end of `conduit run`: what was read, what each destination got, where it is, and what is
left to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conduit_tasks.cli.live import lasting
from conduit_tasks.cli.output import note, print_table
from conduit_tasks.cli.places import place
from conduit_tasks.topology import Pipeline

GAINED = ("delivered", "filtered", "completed", "parked", "retried")
"""Counts of a destination of which the run's share is told."""


def account(pipeline: Pipeline, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Prints a table of the sources and one of the destinations: what came in since `before` (`operate.status`),
    and where it is; below them, what is left to do."""
    earlier = {kind: {each["id"]: each for each in before[kind]} for kind in ("sources", "destinations")}

    def gained(kind: str, now: Mapping[str, Any], name: str) -> int:
        return int(now[name]) - int(earlier[kind].get(now["id"], {}).get(name, 0))

    print()
    print_table(
        ("source", "read", "from"),
        [(s["id"], gained("sources", s, "read"), place(pipeline.source(s["id"]))) for s in after["sources"]],
    )
    print()
    print_table(
        ("destination", *GAINED, "dead", "behind", "where"),
        [
            (
                d["id"],
                *(gained("destinations", d, name) for name in GAINED),
                gained("destinations", d, "dead"),
                d["lag"]["records"],
                place(pipeline.destination(d["id"])),
            )
            for d in after["destinations"]
        ],
    )
    for line in left(after):
        note(line)


def left(found: Mapping[str, Any]) -> list[str]:
    """Returns what is left to do, a sentence each, with the command that shows it."""
    id, said = found["pipeline"], []
    dead = found["dead_before_fan_out"] + sum(d["dead"] for d in found["destinations"])
    if found["error"]:
        said.append(f"{id} is {found['status']}: {found['error']['node']}: {found['error']['error']}")
    said += [
        f"{d['id']} is {d['lag']['records']:,} records behind, the oldest for {lasting(d['lag']['age'])}"
        for d in found["destinations"]
        if d["lag"]["records"]
    ]
    if dead:
        said.append(f"dead letters: {dead:,}; see `conduit dead-letters list {id}`")
    return said
