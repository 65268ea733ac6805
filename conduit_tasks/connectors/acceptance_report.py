"""What the acceptance suite found: one check per promise of `connectors/base.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from conduit_tasks.errors import AcceptanceFailed


@dataclass
class Check:
    """One promise. `passed` None: it could not be tried. `why`: what was seen, or what would make it possible."""

    side: str
    name: str
    passed: bool | None = None
    why: str = ""


@dataclass
class Report:
    """All checks of one connector, in the order in which they were made."""

    connector: str
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no promise is broken; one that could not be tried breaks nothing."""
        return not self.failures()

    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.passed is False]

    def require(self) -> Report:
        """Raises AcceptanceFailed, which lists what failed and why."""
        if not self.passed:
            lines = [f"{check.side}: {check.name}: {check.why}" for check in self.failures()]
            raise AcceptanceFailed("\n  ".join([f"connector '{self.connector}' breaks its contract:", *lines]))
        return self

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "connector": self.connector,
            "passed": self.passed,
            "checks": [asdict(check) for check in self.checks],
        }


class Unmet(Exception):
    """The promise of the check under way is broken; the message says what was seen."""


class NotTried(Exception):
    """The promise cannot be tried here; the message says what it would take."""


@dataclass
class Checks:
    """Collects the checks of one side."""

    side: str
    made: list[Check] = field(default_factory=list)

    @contextmanager
    def check(self, name: str) -> Iterator[Check]:
        """What is raised inside becomes the check's answer; nothing leaves but an interruption."""
        check = Check(self.side, name)
        self.made.append(check)
        try:
            yield check
            check.passed = True
        except NotTried as reason:
            check.why = str(reason)
        except Unmet as fault:
            check.passed, check.why = False, str(fault)
        except Exception as error:  # noqa: BLE001 - whatever a connector raises is its answer
            check.passed, check.why = False, f"{type(error).__name__}: {error}"

    @property
    def sound(self) -> bool:
        """Whether the last check passed, so that what follows has something to stand on."""
        return bool(self.made and self.made[-1].passed)
