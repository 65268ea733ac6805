"""A tap as a child process: its environment, its lines, its log, its end, and how long it may say nothing. It never
outlives the process that started it."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from conduit_tasks.connectors.singer import guard
from conduit_tasks.errors import SourceError
from conduit_tasks.logs import carried

log = logging.getLogger(__name__)

LINE = 64 << 20
"""Bytes of a message at most."""
READ = 1 << 20
LOGGED = 2_000
"""Characters of a line of the tap's log that are kept."""
LAST = 3
"""Lines of it that an error quotes."""
KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""Variables of our environment that a tap gets, with `LC_*`: no secret of ours."""
ENDING = 10.0
"""Seconds in which a process that was killed ends."""
SLICE = 0.5
"""Seconds between two looks at a tap that says nothing."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a tap: what is kept of ours, and what its settings say."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("LC_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


class Tap:
    """A running tap. Use it as a context manager: when it is left, nothing of the tap's process group is left.

    `files`: names and texts that are written to a folder of its own, which only this user may read; `{name}` in an
    argument stands for the file's path. `timeout`: seconds for which it may say nothing. `mask`: hides secrets in its
    log.
    """

    def __init__(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes],
        *,
        env: Mapping[str, str],
        cwd: str,
        timeout: float,
        mask: Callable[[str], str],
    ) -> None:
        self._timeout, self.mask, self._name = timeout, mask, Path(command[0]).name
        self._last: list[str] = []
        self.ended = ""
        """How it ended, in words; "" if it ended well, or was ended by us."""
        self._folder = tempfile.TemporaryDirectory(prefix="conduit-singer-")
        paths = {name: Path(self._folder.name) / name for name in files}
        for name, text in files.items():
            paths[name].touch(0o600)
            paths[name].write_bytes(text)
        words = [str(paths[word[1:-1]]) if word[1:-1] in paths else word for word in command]
        life, self._life = os.pipe()
        self._status, status = os.pipe()
        argv = [sys.executable, "-I", "-S", guard.__file__, str(life), str(status), *words]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what the pipeline file names
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                pass_fds=(life, status),
                process_group=0,
            )
        except BaseException:
            os.close(self._life)
            os.close(self._status)
            self._folder.cleanup()
            raise
        finally:
            os.close(life)
            os.close(status)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out: IO[bytes] = self._process.stdout
        self._logger = threading.Thread(target=carried_log(self._log), args=(self._process.stderr,), daemon=True)
        self._logger.start()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self) -> Iterator[bytes]:
        """Yields the lines of its output to the end. Then `ended` says how it ended. Raises SourceError if it says
        nothing for too long, or a line is too long."""
        parts: list[bytes] = []
        looked, held = select.poll(), 0
        looked.register(self._out, select.POLLIN | select.POLLHUP)
        until = time.monotonic() + self._timeout
        while True:
            if not looked.poll(SLICE * 1000):
                if time.monotonic() < until:
                    continue
                raise self._failed(f"said nothing for {self._timeout:g} s (timeout)")
            data = os.read(self._out.fileno(), READ)
            until = time.monotonic() + self._timeout
            if not data:
                break
            first, *more = data.split(b"\n")
            parts.append(first)
            held += len(first)
            if held > LINE:
                raise self._failed(f"printed a message of more than {LINE >> 20} MiB")
            if more:
                *lines, rest = b"".join(parts), *more
                parts, held = [rest], len(rest)
                for line in lines:
                    if line.strip():
                        yield line
                # What became of a line may have taken its time.
                until = time.monotonic() + self._timeout
        if (rest := b"".join(parts)).strip():
            yield rest
        self.ended = self._end()

    def _end(self) -> str:
        """Returns how it ended, once its output has."""
        looked = select.poll()
        looked.register(self._status, select.POLLIN | select.POLLHUP)
        if not looked.poll(self._timeout * 1000):
            return self._said(f"closed its output and did not end within {self._timeout:g} s")
        code = os.read(self._status, 1000).decode()
        # Its last words come with its end.
        self._logger.join(ENDING)
        if code == "0":
            return ""
        if code.startswith("-") and code[1:].isdecimal():
            return self._said(f"was killed by signal {code[1:]}")
        return self._said(f"ended with exit code {code}" if code.isdecimal() else code or "was killed")

    def _failed(self, why: str) -> SourceError:
        return SourceError(f"singer: the tap {self._said(why)}")

    def _said(self, why: str) -> str:
        return f"{self._name} {why}" + (f"; its log ends with: {' | '.join(self._last)}" if self._last else "")

    def _log(self, lines: IO[bytes]) -> None:
        while raw := lines.readline(LOGGED * 4):
            line = self.mask(raw.decode(errors="replace").rstrip())[:LOGGED]
            if line:
                log.info("%s: %s", self._name, line)
                self._last = [*self._last, line[:300]][-LAST:]

    def close(self) -> None:
        """Ends the tap, with all that it started."""
        if self._life < 0:
            return
        os.close(self._life)
        self._life = -1
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING)
        self._logger.join(ENDING)
        self._out.close()
        if self._process.stderr is not None and not self._logger.is_alive():
            self._process.stderr.close()
        os.close(self._status)
        self._folder.cleanup()


def carried_log(function: Callable[[IO[bytes]], None]) -> Callable[[IO[bytes]], None]:
    """Returns the function with the fields of the log that its thread is to have."""
    begin = carried()

    def run(lines: IO[bytes]) -> None:
        begin()
        function(lines)

    return run
