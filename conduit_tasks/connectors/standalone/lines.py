"""Log lines of a connector become ours: JSON of zerolog or hclog, or text."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from typing import IO, Any

import orjson

from conduit_tasks.connectors.hiding import Hide
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.logs import carried

log = logging.getLogger(__name__)

LONGEST = 16 << 10
"""Most bytes of a line; what follows is another line."""
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "err": logging.ERROR,
    "fatal": logging.ERROR,
    "panic": logging.ERROR,
}
_TEXT = re.compile(r"\[(TRACE|DEBUG|INFO|WARN|ERROR)\]\s*")
_USUAL = frozenset(
    {"level", "@level", "message", "@message", "msg", "time", "@timestamp", "timestamp", "caller", "@caller"}
)


class LogLines:
    """Reads a pipe to its end, in a thread, and logs each line with the context of the thread that made this. `level`:
    of lines that name none; `hide`: hides secrets in them."""

    def __init__(self, name: str, pipe: IO[Any], level: int = logging.WARNING, hide: Hide = str) -> None:
        self._name, self._pipe, self._level, self._hide = name, pipe, level, hide
        self._kept: deque[str] = deque(maxlen=5)
        self._about = carried()
        self._thread = threading.Thread(target=self._run, name=f"log of {name}", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Returns the last lines, to be added to a message; "" if there are none."""
        self._thread.join(0.5)
        return f": {clip(' / '.join(self._kept))}" if self._kept else ""

    def take(self, line: bytes) -> None:
        """Logs a line that came in another way."""
        text = self._hide(line.decode(errors="replace").strip())
        if text:
            level, said = parsed(text, self._level)
            if level >= logging.INFO:
                self._kept.append(said)
            log.log(level, "%s: %s", self._name, said)

    def _run(self) -> None:
        self._about()
        with self._pipe:
            while line := self._pipe.readline(LONGEST):
                self.take(line)


def parsed(line: str, level: int = logging.WARNING) -> tuple[int, str]:
    """Returns the level of a line and what it says, its other fields behind that. `level`: if it names none."""
    if line.startswith("{"):
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            fields = None
        if isinstance(fields, dict):
            said = next((str(fields[k]) for k in ("message", "@message", "msg") if k in fields), "")
            named = str(fields.get("level", fields.get("@level", ""))).lower()
            rest = " ".join(f"{k}={_short(v)}" for k, v in fields.items() if k not in _USUAL)
            return _LEVELS.get(named, level), " ".join(filter(None, (said, rest)))
    if found := _TEXT.search(line):
        return _LEVELS[found[1].lower()], line[found.end() :]
    return level, line


def _short(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
