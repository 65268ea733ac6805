"""The container engine and compose, as far as the trial needs them; an error contains the command's own output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit_tasks.errors import ConduitError

SCRIPT = "scripts/stack-engine.sh"
PROJECT = "conduit-trial"


class TrialError(ConduitError):
    """A step of the trial that failed; the message has the output."""


@dataclass
class Engine:
    """A container engine. `root`: the checkout. `environment`: added to ours for every command. `options`: of compose
    itself."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    compose_command: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Installs and starts an engine and compose if they are missing."""
        said = self.run([str(self.root / SCRIPT), "start"], timeout=600)
        found = dict(line.partition("=")[::2] for line in said.splitlines() if "=" in line)
        self.compose_command = found.pop("COMPOSE").split()
        self.environment.update(found)

    def stop(self) -> None:
        """Ends the engine if `start` started one."""
        self.run([str(self.root / SCRIPT), "stop"], timeout=120)

    def docker(self, *words: str, timeout: float = 120) -> str:
        return self.run(["docker", *words], timeout=timeout)

    def compose(self, *words: str, timeout: float = 300) -> str:
        return self.run(self.compose_line(*words), timeout=timeout)

    def compose_line(self, *words: str) -> list[str]:
        return [*self.compose_command, "-p", PROJECT, *self.options, *words]

    def popen(self, line: Sequence[str]) -> subprocess.Popen[str]:
        """Starts a command whose stdout and stderr are one stream, to be read line by line."""
        return subprocess.Popen(  # noqa: S603 - our own words
            list(line),
            env={**os.environ, **self.environment},
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line: Sequence[str], *, timeout: float) -> str:
        """Runs a command and returns its output. Raises TrialError if it fails, with the end of its output, or lasts
        too long."""
        what = " ".join(list(line)[:4])
        try:
            done = subprocess.run(  # noqa: S603 - our own words
                list(line),
                env={**os.environ, **self.environment},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except FileNotFoundError as error:
            raise TrialError(f"{line[0]} is not there: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise TrialError(f"`{what} …` did not end within {timeout:g} s") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise TrialError(f"`{what} …` ended with {done.returncode}: {said}")
        return done.stdout

    def container(self, service: str) -> dict[str, Any]:
        """Returns the engine's description of a service's container, also of a stopped one."""
        ids = self.compose("ps", "-a", "-q", service).split()
        if not ids:
            raise TrialError(f"the stack has no container of {service}")
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", ids[0]))
        return found[0]

    def kill(self, service: str) -> Killed:
        """Kills the container's main process, as the kernel would: `docker kill` would keep it from being restarted."""
        before = self.container(service)
        os.kill(int(before["State"]["Pid"]), signal.SIGKILL)
        return Killed(self, service, int(before["RestartCount"]), time.monotonic())


@dataclass(frozen=True)
class Killed:
    """A service that was killed at `at` (monotonic), after `restarts` earlier ones."""

    engine: Engine
    service: str
    restarts: int
    at: float

    def await_back(self, timeout: float) -> float:
        """Returns the seconds until its restart policy had it running and healthy again. Raises TrialError if it is not
        in time."""
        until(self._healthy, f"{self.service} to be healthy again after its kill", timeout)
        return time.monotonic() - self.at

    def _healthy(self) -> bool:
        now = self.engine.container(self.service)
        again = int(now["RestartCount"]) > self.restarts
        return again and now["State"].get("Health", {}).get("Status") == "healthy"


def until(condition: Callable[[], bool], what: str, timeout: float, pause: float = 1.0) -> None:
    """Waits for a condition. Raises TrialError, which names `what` was waited for."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TrialError(f"waited {timeout:g} s for {what}, in vain")
        time.sleep(pause)
