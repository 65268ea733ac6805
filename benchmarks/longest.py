"""`scripts`: how long Redis serves nobody else: every broker script with as much as its header lets it take, in a Redis
that holds nothing else, and in one that holds much."""

from __future__ import annotations

from itertools import islice
from typing import Any

from benchmarks.calls import bare, cases
from benchmarks.calls.crowd import Crowd, Stored
from benchmarks.calls.parts import BASE, Call, load
from benchmarks.place import Place, serving
from benchmarks.tables import Figure, Result

LIMIT = 50.0
"""Milliseconds."""


def prepare(client: Any, call: Call) -> None:
    """An empty Redis with what the call finds there."""
    client.flushall()
    batch = client.pipeline(transaction=False)
    for key, fields in {**BASE, **call.fields}.items():
        batch.hset(key, mapping=fields)
    batch.execute()
    call.prepare(client)


def once(client: Any, name: str, call: Call) -> list[Any]:
    """Runs it. Raises where it did not do it."""
    answer = load(name.partition(" ")[0])(client, call.keys, **call.args)
    if answer and answer[0] in ("broken", "fenced", "stopped", "held", "busy", "gone", "taken", "moved"):
        raise RuntimeError(f"{name}: {answer}")
    return answer


def spent(client: Any) -> float:
    """CPU milliseconds of the thread that serves."""
    info = client.info("cpu")
    return float(info["used_cpu_sys_main_thread"] + info["used_cpu_user_main_thread"]) * 1e3


def measured(client: Any, name: str, call: Call) -> tuple[float, float]:
    """Runs a call that is prepared: milliseconds by Redis' SLOWLOG, and of its CPU."""
    client.slowlog_reset()
    before = spent(client)
    once(client, name, call)
    cpu = spent(client) - before
    found = [e["duration"] for e in client.slowlog_get(20) if e["command"][:4] in (b"EVAL", "EVAL")]
    return max(found) / 1e3, cpu


def run(place: Place, rounds: int, share: int = 1, every: int = 1) -> Result:
    """`rounds` of each; of the longest the least, as what else the machine does only adds to it. `share`: what is
    stored is one such part of `Stored()`; `every`: only each so-manieth call is made."""
    place.pipeline()
    much = Stored().part(share)
    alone: dict[str, list[tuple[float, float]]] = {}
    crowded: dict[str, list[tuple[float, float]]] = {}
    with serving(place) as (_, client, _):
        client.config_set("slowlog-log-slower-than", 0)
        for _ in range(rounds):
            for name, call in islice(cases().items(), 0, None, every):
                prepare(client, call)
                alone.setdefault(name, []).append(measured(client, name, call))
        client.flushall()
        crowd = Crowd(client, much)
        for _ in range(rounds):
            for name, call in islice(bare().items(), 0, None, every):
                crowd.prepare(call, BASE)
                crowded.setdefault(name, []).append(measured(client, name, call))
    least = {name: min(took for took, _ in of) for name, of in alone.items()}
    cpu = {name: min(cpu for _, cpu in of) for name, of in crowded.items()}
    rows = [
        [
            *(name, least[name], max(took for took, _ in alone[name]), min(cpu for _, cpu in alone[name])),
            *((min(took for took, _ in crowded[name]), cpu[name]) if name in cpu else ("", "")),
        ]
        for name in sorted(least, key=lambda name: -max(least[name], cpu.get(name, 0.0)))
    ]
    longest, busiest = max(least, key=lambda n: least[n]), max(cpu, key=lambda n: cpu[n])
    return Result(
        f"scripts: milliseconds that Redis is at one script with all it takes, {rounds} rounds",
        ("script", "least", "most", "CPU", "with much stored: least", "CPU"),
        rows,
        [
            Figure(f"the longest ({longest})", least[longest], "≤", LIMIT, " ms"),
            Figure(f"the most CPU with much stored ({busiest})", cpu[busiest], "≤", LIMIT, " ms"),
        ],
        [
            "By Redis' own SLOWLOG, and the CPU time of its thread, which reads the command, too. A script without "
            "a list or a loop takes what a few commands take.",
            f"Stored are {much}.",
        ],
        {
            "scripts": float(len({name.partition(" ")[0] for name in alone})),
            "longest": least[longest],
            "busiest": cpu[busiest],
        },
    )
