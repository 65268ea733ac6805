"""`custom.javascript`: a JavaScript function of the user, run by QuickJS inside the worker.

The script has a function `process(rec)` that returns the record, another one, several in an array (ours), or null,
which filters it. `rec` has `Position`, `Operation`, `Metadata`, `Key`, `Payload.Before` and `Payload.After`; raw data
is an array of bytes, structured data an object. The script can use `logger` (as zerolog: `logger.Info().Msg("…")`),
`Record()`, `RawData(text)` and `StructuredData()`. Whole numbers beyond 2⁵³ are BigInt, so that none loses a digit.

A script sees no file, no network and no module, and is bounded in time, memory and stack. If it exceeds a bound, its
record is nacked, and the script's global variables are new for the next one. The position stays the source's.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.record import jsons
from conduit_tasks.record.fields import parse
from conduit_tasks.record.record import Data, Record
from conduit_tasks.settings import settings as installation

log = logging.getLogger("conduit.javascript")

STACK = 512 * 1024
"""Bytes of JavaScript's stack, well within that of a thread."""
_LARGE = re.compile(rb"[0-9]{16}")
"""Pattern of digits that may be a number which JavaScript does not hold exactly."""
_LEVELS = {"Trace": 10, "Debug": 10, "Info": 20, "Warn": 30, "Error": 40}
_OPERATION, _METADATA = parse(".Operation"), parse(".Metadata")

Run = Callable[[str, bool], str]


class JavaScript(RecordProcessor):
    """See the module. An engine belongs to one thread, so each thread gets its own."""

    spec = Spec(
        "custom.javascript",
        "Runs custom JavaScript code.",
        (
            Option("script", "code with a function process(rec)"),
            Option("script.path", "a file with it, relative to the home folder; one of the two is required"),
            Option("timeout", "what one record may take, in CPU time", default="1s"),
            Option("memory", "what the script may hold", default="64MiB"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._source = self._read()
        self._timeout = options.duration(self.settings, "timeout")
        self._memory = options.size(self.settings, "memory", least=1 << 20)
        self._local = threading.local()
        self._local.run = self._compile()

    def process(self, record: Record) -> Record | list[Record] | None:
        import quickjs

        given = jsons.dumps(
            {
                "position": record.position.decode("latin-1"),
                "operation": record.operation,
                "metadata": record.meta(),
                "key": _inward(record.key),
                "before": _inward(record.before),
                "after": _inward(record.after),
            },
        )
        run: Run | None = getattr(self._local, "run", None)
        if run is None:
            run = self._local.run = self._compile()
        try:
            answer = run(given.decode(), _LARGE.search(given) is not None)
        except (quickjs.JSException, quickjs.StackOverflow) as error:
            if str(error).startswith(("InternalError", "RangeError")):
                # A bound was hit in the middle of something: the script's state cannot be used any more.
                self._local.run = None
            raise RecordError(_said(error)) from None
        made, logs = jsons.exact(answer)
        for level, text in logs:
            log.log(_LEVELS[level], "%s", text)
        if not made:
            return None
        records = [record, *(record.copy() for _ in made[1:])]
        for each, values in zip(records, made):
            _take_over(each, values)
        return records if len(records) > 1 else record

    def close(self) -> None:
        self._local = threading.local()

    def _read(self) -> str:
        script, path = self.settings.get("script", ""), self.settings.get("script.path", "")
        if bool(script.strip()) == bool(path.strip()):
            raise ConfigError("custom.javascript: give exactly one of the options 'script' and 'script.path'")
        if script.strip():
            return script
        file = Path(installation().path(path.strip()))
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"custom.javascript: option 'script.path': {file} cannot be read: {error}") from None

    def _compile(self) -> Run:
        import quickjs

        context = quickjs.Context()
        context.set_memory_limit(self._memory)
        context.set_max_stack_size(STACK)
        context.set_time_limit(self._timeout)
        run = context.eval((files("conduit_tasks.processors") / "javascript_api.js").read_text(encoding="utf-8"))
        try:
            context.eval(self._source)
            if context.eval("typeof process") != "function":
                raise ConfigError("custom.javascript: the script has no function process(rec)")
        except (quickjs.JSException, quickjs.StackOverflow) as error:
            raise ConfigError(f"custom.javascript: the script does not load: {_said(error)}") from None
        called: Run = run
        return called


def _inward(data: Data) -> dict[str, Any] | None:
    if data is None:
        return None
    return {"raw": data.decode("latin-1")} if isinstance(data, bytes) else {"structured": data}


def _outward(data: dict[str, Any] | None) -> Data:
    if data is None:
        return None
    return data["raw"].encode("latin-1") if "raw" in data else data["structured"]


def _take_over(record: Record, values: dict[str, Any]) -> None:
    if values["operation"] is not None:
        _OPERATION.set(record, values["operation"])
    _METADATA.set(record, values["metadata"])
    record.key, record.before, record.after = (_outward(values[name]) for name in ("key", "before", "after"))


def _said(error: Exception) -> str:
    """Returns the message of the error, and its first place in the script."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])
