"""Results of the acceptance suite: one check per promise of `connectors/base.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from conduit_tasks.errors import AcceptanceFailed


@dataclass
class Check:
    """Result of one check. `passed` None: it could not be run. `why`: what was seen, or what is needed to run it."""

    side: str
    name: str
    passed: bool | None = None
    why: str = ""


@dataclass
class Report:
    """All checks of one connector, in the order in which they were run."""

    connector: str
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed; a check that could not be run does not count as failed."""
        return not self.failures()

    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.passed is False]

    def require(self) -> Report:
        """Returns the report. Raises AcceptanceFailed, with the reasons, if a check failed."""
        if not self.passed:
            lines = [f"{check.side}: {check.name}: {check.why}" for check in self.failures()]
            raise AcceptanceFailed("\n  ".join([f"connector '{self.connector}' breaks its contract:", *lines]))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for programs."""
        return {
            "connector": self.connector,
            "passed": self.passed,
            "checks": [asdict(check) for check in self.checks],
        }


class Unmet(Exception):
    """Failure of the running check; the message says what was seen."""


class NotTried(Exception):
    """The running check cannot be run here; the message says what it needs."""


@dataclass
class Checks:
    """Collects the checks of one side."""

    side: str
    made: list[Check] = field(default_factory=list)

    @contextmanager
    def check(self, name: str) -> Iterator[Check]:
        """Runs one check: exceptions raised inside become its result; only interruptions are raised further."""
        check = Check(self.side, name)
        self.made.append(check)
        try:
            yield check
            check.passed = True
        except NotTried as reason:
            check.why = str(reason)
        except Unmet as fault:
            check.passed, check.why = False, str(fault)
        except Exception as error:  # noqa: BLE001 - whatever a connector raises is the result
            check.passed, check.why = False, f"{type(error).__name__}: {error}"

    @property
    def sound(self) -> bool:
        """Whether the last check passed, so that checks that depend on it can run."""
        return bool(self.made and self.made[-1].passed)
