"""`scripts`: how long Redis serves nobody else: every broker script with as much as its header lets it take."""

from __future__ import annotations

from typing import Any

from benchmarks.calls import cases
from benchmarks.calls.parts import BASE, Call
from benchmarks.place import Place, serving
from benchmarks.tables import Figure, Result
from conduit_tasks.broker.scripts import load

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


def run(place: Place, rounds: int) -> Result:
    """`rounds` of each; of the longest the least, as what else the machine does only adds to it."""
    place.pipeline()
    with serving(place) as (_, client, _):
        client.config_set("slowlog-log-slower-than", 0)
        took: dict[str, list[float]] = {}
        cpu: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, call in cases().items():
                prepare(client, call)
                client.slowlog_reset()
                before = spent(client)
                once(client, name, call)
                cpu.setdefault(name, []).append(spent(client) - before)
                found = [e["duration"] for e in client.slowlog_get(20) if e["command"][:4] in (b"EVAL", "EVAL")]
                took.setdefault(name, []).append(max(found) / 1e3)
    least = {name: min(of) for name, of in took.items()}
    rows = [
        [name, least[name], max(of), min(cpu[name])] for name, of in sorted(took.items(), key=lambda x: -least[x[0]])
    ]
    longest = max(least, key=lambda n: least[n])
    return Result(
        f"scripts: milliseconds that Redis is at one script with all it takes, {rounds} rounds",
        ("script", "least", "most", "CPU"),
        rows,
        [Figure(f"the longest ({longest})", least[longest], "≤", LIMIT, " ms")],
        [
            "By Redis' own SLOWLOG, and the CPU time of its thread, which reads the command, too. A script without "
            "a list or a loop takes what a few commands take."
        ],
        {"scripts": float(len({name.partition(" ")[0] for name in took})), "longest": least[longest]},
    )
