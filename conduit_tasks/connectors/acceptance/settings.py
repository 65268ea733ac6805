"""Checks of settings: every error is named before anything is opened."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.acceptance.report import Checks, NotTried, Unmet
from conduit_tasks.errors import ConfigError

UNKNOWN = "acceptance-unknown"
"""An option that no connector has."""


def settings_checks(checks: Checks, cls: Any, settings: Mapping[str, str]) -> None:
    """Checks the constructor of one side with these settings, which must be valid. Nothing is opened."""
    with checks.check("settings are taken, and the object travels to an executor before it is opened"):
        pickle.loads(pickle.dumps(cls(settings)))  # noqa: S301 - our own bytes
    if not checks.sound:
        return
    required = [option.name for option in cls.spec.options if option.required]
    with checks.check("a required option that is missing is named") as check:
        if not required:
            raise NotTried("it has none")
        for name in required:
            _refused(cls, {k: v for k, v in settings.items() if k != name}, name)
        check.why = ", ".join(required)
    with checks.check("an unknown option is refused"):
        if any(option.name in ("*", ".*") for option in cls.spec.options):
            raise NotTried("it takes options of any name")
        _refused(cls, {**settings, UNKNOWN: "1"}, UNKNOWN)
    chosen = [option.name for option in cls.spec.options if option.choices]
    with checks.check("a value that an option cannot have is refused") as check:
        if not chosen:
            raise NotTried("no option has choices")
        for name in chosen:
            _refused(cls, {**settings, name: UNKNOWN}, name)
        check.why = ", ".join(chosen)


def _refused(cls: Any, settings: Mapping[str, str], option: str) -> None:
    try:
        cls(settings)
    except ConfigError as error:
        if option not in str(error):
            raise Unmet(f"the message does not name '{option}': {error}") from None
        for secret in (o.name for o in cls.spec.options if o.secret):
            value = settings.get(secret, "")
            if len(value) > 3 and value in str(error):
                raise Unmet(f"the message about '{option}' shows the value of the secret option '{secret}'") from None
        return
    raise Unmet(f"'{option}' is no ConfigError")
