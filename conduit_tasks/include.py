"""The user's own Python: functions named `module:function` in a pipeline file, found below the home folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings


def load_function(call: str, where: str) -> Callable[..., Any]:
    """Imports the user's function `module:name`; the folder that holds `include` is put on the path.

    Raises ConfigError if there is no such function; its message begins with `where`.
    """
    module_name, colon, name = call.strip().partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{where} must be module:function, not {call!r}")
    home = str(settings().home)
    if home not in sys.path:
        sys.path.insert(0, home)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{where}: {module_name} cannot be imported from {home}: {error}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"{where}: {module_name} has no function {name}")
    loaded: Callable[..., Any] = found
    return loaded
