"""Many seeds, side by side in processes of their own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any
from unittest.mock import patch

from conduit_tasks.verify.live import live
from conduit_tasks.verify.result import Result
from conduit_tasks.verify.server import cleaned_up, leave_if_told, own_redis, scratch_folder

LOOK = 5.0
"""Seconds without a result after which the workers are checked."""
ENDS = 20.0
"""Seconds that a worker has to end in good order."""


def verify(seeds: Sequence[int], events: int, jobs: int, *, trace: bool = False) -> Iterator[Result]:
    """Runs every seed, `jobs` at a time, and yields each result as it ends. One job: in this process; `trace`: as in
    `live`."""
    jobs = min(jobs, len(seeds))
    if jobs <= 1:
        with _kept_to_one_cpu(os.getpid()):
            yield from _share(list(seeds), events, trace)
        return
    # A folder for all workers: whatever a killed worker leaves is removed with it.
    with scratch_folder() as root:
        yield from _side_by_side(seeds, events, jobs, trace, root)


def _side_by_side(seeds: Sequence[int], events: int, jobs: int, trace: bool, root: Path) -> Iterator[Result]:
    spawn = multiprocessing.get_context("spawn")
    todo, done = spawn.Queue(), spawn.Queue()
    for seed in seeds:
        todo.put(seed)
    workers = []
    # The same order of sets in every process: a seed's history must not depend on the process that runs it.
    held = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        for number in range(jobs):
            todo.put(None)
            work = (todo, done, events, trace, root, number)
            workers.append(spawn.Process(target=_work, args=work, daemon=True))
            workers[-1].start()
    finally:
        if held is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = held
    try:
        yield from _ended(done, workers)
    finally:
        # A killed worker may have left a queue locked, and a worker that waits for it does not end by itself.
        todo.cancel_join_thread()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(ENDS)
            worker.kill()
            worker.join()


def _ended(done: Any, workers: list[Any]) -> Iterator[Result]:
    """Yields the workers' results until all have ended. Raises RuntimeError if one ended without reporting it."""
    ended = 0
    while ended < len(workers):
        leave_if_told()
        # Checked each time: the others may always have a result ready.
        if gone := [worker for worker in workers if worker.exitcode]:
            raise RuntimeError(f"a process of verify ended with {gone[0].exitcode}, its seed unfinished")
        try:
            answer = done.get(timeout=LOOK)
        except Empty:
            continue
        if isinstance(answer, Result):
            yield answer
        elif answer is None:
            ended += 1
        else:
            raise answer


def _work(  # noqa: PLR0917 - all that a process is given
    todo: Any, done: Any, events: int, trace: bool, root: Path, number: int
) -> None:
    parent = multiprocessing.parent_process()
    try:
        with cleaned_up(), _kept_to_one_cpu(number):
            for result in _share(iter(todo.get, None), events, trace, root):
                done.put(result)
                if parent is not None and not parent.is_alive():
                    return
        done.put(None)
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        done.put(RuntimeError(f"{type(error).__name__}: {error}"))


@contextmanager
def _kept_to_one_cpu(number: int) -> Iterator[None]:
    """Keeps this thread, those that it starts and the Redis that it starts to one CPU: the threads move one at a time,
    and handing over to one on another CPU takes longer than most moves (a third of the time of a seed)."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[number % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _unheard() -> Iterator[None]:
    """Silences the remains of dead processes: their coroutines and writers complain when they are collected, many of
    them with the history that held them."""
    with warnings.catch_warnings(), patch.object(sys, "unraisablehook", lambda _: None):
        warnings.simplefilter("ignore")
        yield


def _share(seeds: Any, events: int, trace: bool, root: Path | None = None) -> Iterator[Result]:
    with scratch_folder(root) as folder, own_redis(folder) as url:
        try:
            gc.freeze()
            for seed in seeds:
                with _unheard():
                    result = live(seed, events, folder, url, trace=trace)
                    # Garbage that is frozen would stay for ever, two MB a seed.
                    gc.collect()
                # Only modules outlive a seed: the next collection, which closes files of dead processes, spares them.
                gc.freeze()
                leave_if_told()
                yield result
        finally:
            gc.unfreeze()
