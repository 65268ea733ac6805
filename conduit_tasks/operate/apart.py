"""Starts and ends the process in which a record is tried, within a time and with a bound on what it says: whatever a
processor does, the caller goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

import orjson

from conduit_tasks.errors import ConfigError
from conduit_tasks.operate.ask import WRITTEN, Ask
from conduit_tasks.operate.peek import peek, staged
from conduit_tasks.operate.stage_steps import has_steps
from conduit_tasks.record import jsons
from conduit_tasks.settings import settings
from conduit_tasks.topology import Pipeline

SECONDS = 20.0
"""Time that a trial has, unless the caller says another."""
RECORD = 4 << 20
"""Bytes that a record and the text of a file may have."""
LAST = 4_096
"""Bytes of the end of stderr that are looked at."""


def tried(ask: Ask, seconds: float = SECONDS) -> dict[str, Any]:
    """Returns `pipeline`, the `entry`, the record's id, its `steps`, whether something was `cut`, and `findings` of a
    changed file; `error` if the file or the record cannot be used.

    A step has its `node`, `step` (processor, trigger, sent), `outcome`, the records `before` and `after` it as they are
    shown, with their counts, and where it failed `error`, `error_class`, the `fault` and its `place` in the file.
    Raises ConfigError if something is too large.
    """
    for what, text in (("record", ask.record), ("text of the file", ask.text)):
        if text is not None and len(text.encode(errors="replace")) > RECORD:
            raise ConfigError(f"the {what} has more than {RECORD >> 20} MiB: try a smaller one")
    said, errors, late, code = _ask(ask, seconds)
    why = f"took longer than {seconds:g} s" if late else f"ended its process ({_how(code, errors, ask.own)})"
    return _answer(said, why, late)


def peeked(pipeline: Pipeline, node: str, last: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Returns what `peek` does, and what the processors after the stage make of each record (`steps`, as `tried` has
    them; at a destination `sent`: `records`, and the processors that were `left_out`), as far as a process of its own
    finds that in time. Raises ConfigError, SpoolError."""
    staged(pipeline, node)
    if has_steps(pipeline, node):
        said, *_ = _ask(Ask(pipeline.id, node=node, last=last), seconds)
        for line in said.splitlines():
            with suppress(jsons.JSONDecodeError, KeyError):
                return dict(jsons.exact(line)["peek"])
    return peek(pipeline, node, last)


def _ask(ask: Ask, seconds: float) -> tuple[bytes, bytes, bool, int]:
    """Returns what the process says on stdout and stderr, whether it was ended because it was late, and its exit
    code."""
    late = False
    # Files, which the process can fill up to a limit of its own, not pipes, which this process would have to hold.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "conduit_tasks.operate.try_child"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            env={**os.environ, "CONDUIT_HOME": str(settings().home)},
            start_new_session=True,
        )
        try:
            process.communicate(orjson.dumps(asdict(ask)), seconds)
        except subprocess.TimeoutExpired:
            late = True
            _end(process)
            process.communicate()
        finally:
            _end(process)
        return _end_of(out, 2 * WRITTEN), _end_of(errors, LAST), late, process.returncode


def _end_of(file: IO[bytes], most: int) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return file.read(most)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, and what it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _answer(said: bytes, why: str, late: bool) -> dict[str, Any]:
    """`why`: what is said if the process ended before its answer did."""
    out: dict[str, Any] = {"steps": [], "findings": [], "cut": False, "error": None}
    begun: dict[str, Any] | None = None
    whole = False
    for line in said.splitlines():
        try:
            each = jsons.exact(line)
        except jsons.JSONDecodeError:
            break  # it was ended in the middle of it
        if "begin" in each:
            begun = each["begin"]
        elif "step" in each:
            begun = None
            out["steps"].append(each)
        else:
            whole = whole or "end" in each or "error" in each
            out |= {name: value for name, value in each.items() if name != "end"}
    if whole:
        return out
    if begun is None:
        out["error"] = f"the trial {why}"
        return out
    failed = {"after": [], "after_count": 0, "error_class": "timeout" if late else "killed its worker", "fault": None}
    out["steps"].append({**begun, "outcome": "failed", **failed, "error": f"{begun['processor']} {why}", "place": None})
    return out


def _how(code: int, errors: bytes, own: bool) -> str:
    """`own`: whoever asks may see what a process of this user prints; others see an error's name only, as its message
    may hold parts of a record."""
    if code < 0:
        return signal.Signals(-code).name
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    if not own:
        named = re.match(r"[\w.]{1,200}(?=:|$)", last)
        last = named[0] if named else ""
    return last[:500] or f"exit code {code}"
