"""Log records as lines on stderr, for people or as JSON, each with its context (pipeline, run, node, destination,
micro-batch) and without users and passwords of URLs.

`CONDUIT_LOG=json` makes every line an object (timestamp, level, logger, event, then the context fields), `text` a line
for people. Inside Airflow's processes Airflow's own logging stays; there the context becomes fields of its records.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_about: ContextVar[Mapping[str, Any]] = ContextVar("conduit_about", default={})  # noqa: B039 - never changed in place

_PASSWORD = re.compile(r"(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)")


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Adds these fields to records logged in the block, beside those of blocks around it; a None is left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    token = _about.set({**_about.get(), **given})
    try:
        # structlog costs an eighth of a CPU second to import; if Airflow logs, it is imported already.
        if "structlog" in sys.modules:
            from structlog.contextvars import bound_contextvars

            with bound_contextvars(**given):
                yield
        else:
            yield
    finally:
        _about.reset(token)


def fields() -> dict[str, Any]:
    """Returns the context fields that a record logged now would have."""
    return dict(_about.get())


def carried() -> Callable[[], None]:
    """Returns a function that gives another thread this thread's context fields; the thread calls it first."""
    here = _about.get()
    return lambda: _about.set(here) and None


def configure(level: int = logging.INFO, others: int = logging.WARNING) -> None:
    """Makes this process log to stderr as `CONDUIT_LOG` says: our records from `level` up, all others from `others`."""
    root = logging.getLogger()
    if not any(isinstance(handler, _Stderr) for handler in root.handlers):
        root.addHandler(_Stderr())
    root.setLevel(others)
    for name in ("conduit_tasks", "conduit.gateway"):
        logging.getLogger(name).setLevel(level)


class _Stderr(logging.StreamHandler):
    """Handler that writes to the current `sys.stderr`, in the format of the current settings."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    def format(self, record: logging.LogRecord) -> str:
        from conduit_tasks.settings import settings

        return (Json() if settings().log == "json" else Text()).format(record)

    @property
    def stream(self) -> Any:
        return sys.stderr


class _Kept(_Stderr):
    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def kept(most: int = 1_000) -> Iterator[deque[str]]:
    """Collects the last `most` lines logged in the block, which are also logged as usual: the driver writes the lines
    of a remote worker again."""
    lines: deque[str] = deque(maxlen=most)
    handler = _Kept(lines)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield lines
    finally:
        root.removeHandler(handler)


class Text(logging.Formatter):
    """`2026-01-02 03:04:05,678 WARNING logger: message [pipeline=p destination=d]`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        found = " ".join(f"{name}={value}" for name, value in _about.get().items())
        return super().formatMessage(record) + (f" [{found}]" if found else "")

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class Json(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        import orjson

        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": masked(record.getMessage()),
            **_about.get(),
        }
        if record.exc_info:
            line["exception"] = masked(self.formatException(record.exc_info))
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def masked(text: str) -> str:
    """Returns the text without users and passwords of URLs."""
    return _PASSWORD.sub("***", text) if "@" in text else text


def parse(line: str) -> dict[str, Any] | None:
    """Returns the object of a line that `Json` wrote; None for every other line."""
    if not line.startswith('{"timestamp":'):
        return None
    import json

    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"level", "logger", "event"} <= found.keys() else None
