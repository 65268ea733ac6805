"""The process of one connector: start, handshake, log lines, and the end of its whole process group.

A connector is HashiCorp's go-plugin over gRPC: it prints one line with its address to stdout, and serves there. It runs
in a process group of its own, in our home folder, with an environment that holds nothing secret. Beside it runs a shell
that waits for this process to end, in whatever way, and then kills the group: a connector never outlives its task.
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from conduit_tasks.connectors.hiding import Hide
from conduit_tasks.connectors.standalone.lines import LogLines
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.settings import settings

COOKIE = {"CONDUIT_PLUGIN_MAGIC_COOKIE": "204e8e812c3a1bb73b838928c575b42a105dd2e9aa449be481bc4590486df53f"}
"""Variable that tells a connector that it was started by its host, and not by hand."""
CORE, PROTOCOL = "1", "2"
"""Versions of go-plugin's handshake and of the connector protocol."""
PASSED = ("HOME", "LANG", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ")
"""Variables of our environment that a connector gets."""
START = 30.0
"""Seconds that a connector has to print its address."""
LINE = 64 << 10
"""Most bytes that it may print until then."""
ENDING = 3.0
"""Seconds that it has to end after it was asked to, before its group is killed."""
KILLED = 10.0
"""Seconds to wait for a process that was killed, which may be in the middle of a system call."""
_WATCHER = 'read -r _; kill -s KILL -- "-$1" 2>/dev/null'


class Process:
    """A started connector. `target`: its address, as gRPC takes it. Raises Unavailable or ConfigError if it cannot be
    started, or does not say in time, in the one line that it has to print, where it serves."""

    def __init__(self, file: Path, name: str, environment: dict[str, str], hide: Hide = str) -> None:
        self.name = name
        self._ended = threading.Lock()
        # A socket's path has 108 bytes at most, so it is not below a folder of ours.
        self._folder = tempfile.mkdtemp(prefix="conduit-")
        env = {
            **COOKIE,
            "PLUGIN_PROTOCOL_VERSIONS": f"1,{PROTOCOL}",
            "PLUGIN_MIN_PORT": "10000",
            "PLUGIN_MAX_PORT": "25000",
            "PLUGIN_UNIX_SOCKET_DIR": self._folder,
            **{name: os.environ[name] for name in PASSED if name in os.environ},
            **environment,
        }
        try:
            self._child = subprocess.Popen(  # noqa: S603 - the program that the pipeline file names
                [str(file)],
                env=env,
                cwd=settings().home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            why = error.strerror or str(error)
            raise ConfigError(f"{name}: {file} cannot be started: {why}; is it a program for this machine?") from None
        self._watcher = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", _WATCHER, "conduit-watcher", str(self._child.pid)],
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.log = LogLines(name, _pipe(self._child.stderr), hide=hide)
        try:
            self.target = self._handshake()
        except BaseException:
            self.end()
            _pipe(self._child.stdout).close()
            raise
        # go-plugin's server goes on to write to stdout what the connector prints.
        LogLines(name, _pipe(self._child.stdout), level=logging.INFO, hide=hide)

    def _handshake(self) -> str:
        line = self._first_line().strip()
        parts = line.split("|")
        if len(parts) < 4 or parts[0] != CORE:
            said = f"it printed {line[:200]!r}" if line else self._why_nothing()
            raise Unavailable(f"{self.name}: no handshake of a connector: {said}")
        _, version, network, address, *rest = parts
        if version != PROTOCOL:
            raise ConfigError(
                f"{self.name}: it speaks version {version} of the connector protocol, and only {PROTOCOL} is spoken "
                "here; take a release of the connector that was built with a newer SDK (v0.11 or later)"
            )
        if rest and rest[0] not in ("", "grpc"):
            raise ConfigError(f"{self.name}: it speaks {rest[0]}, not grpc; take a newer release of the connector")
        if network not in ("unix", "tcp") or not address:
            raise Unavailable(f"{self.name}: no handshake of a connector: it serves at {network} {address!r}")
        return f"unix:{address}" if network == "unix" else address

    def _first_line(self) -> str:
        """Returns the first line of stdout; what there is of it if the process ends or the time is up."""
        out = _pipe(self._child.stdout)
        deadline, found = time.monotonic() + START, bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0 and len(found) < LINE:
                if not selector.select(left):
                    break
                piece = os.read(out.fileno(), 1)
                if not piece or piece == b"\n":
                    break
                found += piece
        return found.decode(errors="replace")

    def _why_nothing(self) -> str:
        try:
            code = self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"it printed nothing within {START:g} s"
        return f"it ended with {_ending(code)}{self.log.last()}"

    def gone(self) -> str:
        """Returns how the process ended, in words; "" while it runs. Waits a moment: its connection breaks first."""
        try:
            code = self._child.wait(0.5)
        except subprocess.TimeoutExpired:
            return ""
        return f"its process ended with {_ending(code)}{self.log.last()}"

    @property
    def pid(self) -> int:
        """Id of the process, and of its group."""
        return self._child.pid

    def end(self, *, asked: bool = False, patience: float = 0.0) -> None:
        """Ends the process, its group and the watcher; may be called again. `asked`: it was asked to end and does so by
        itself; `patience`: seconds that it has for that, and again once SIGTERM has asked it."""
        with self._ended:
            for number in ([0] if asked else []) + ([signal.SIGTERM] if patience else []):
                if self._child.poll() is None:
                    self._signal(number)
                    with suppress(subprocess.TimeoutExpired):
                        self._child.wait(patience)
            self._signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(KILLED)
            # Whoever it started, and left behind.
            self._signal(signal.SIGKILL)
            if self._watcher.poll() is None:
                self._watcher.kill()
            with suppress(subprocess.TimeoutExpired):
                self._watcher.wait(KILLED)
            _pipe(self._watcher.stdin).close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


def token() -> str:
    """Returns a new token, which a connector sends with what it calls back."""
    return secrets.token_urlsafe(24)


def _ending(code: int) -> str:
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def _pipe(pipe: IO[Any] | None) -> IO[Any]:
    assert pipe is not None
    return pipe
