"""What a run costs: seconds, CPU seconds of every process below one, the most memory they held.

CPU is user + system time, that of children already waited for included, so that Spark's Python workers and a JVM's
helpers count wherever they ended.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
LEFT_OVER = 20.0
"""Seconds that what a driver left behind has to end."""


@dataclass
class Cost:
    """Filled in when the `measured` block ends."""

    seconds: float = 0.0
    cpu: float = 0.0


def tree_cpu(root: int) -> float:
    """CPU seconds so far of process `root` and everything below it; 0 where it has ended."""
    try:
        top = psutil.Process(root)
        processes = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(map(_cpu, processes))


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


@contextmanager
def measured(*roots: int) -> Iterator[Cost]:
    """Seconds and CPU of these process trees while the block runs."""
    cost = Cost()
    before, began = sum(map(tree_cpu, roots)), time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - began
    cost.cpu = sum(map(tree_cpu, roots)) - before


def adopt() -> None:
    """Makes this process the parent of whatever its descendants leave behind (Linux), so that `children` counts it.

    Spark's Python workers outlive the JVM that asked for them by a moment, and would be nobody's.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@contextmanager
def children(*servers: int) -> Iterator[Cost]:
    """Seconds and CPU of every process that is started and ends in the block, left-over ones included.

    `servers`: children that stay, and are not counted. Nothing else may run meanwhile.
    """
    cost = Cost()
    before, began = _waited(), time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - began
    deadline = time.monotonic() + LEFT_OVER
    for pid in {p.pid for p in psutil.Process().children()} - set(servers):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                raise SystemExit(f"process {pid} was left behind by a driver and does not end")
            time.sleep(0.02)
    cost.cpu = _waited() - before


def _waited() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def most_memory(pids: Iterable[int]) -> int:
    """Bytes: the sum of each process's own peak of resident memory (`VmHWM`)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) << 10
    return total
