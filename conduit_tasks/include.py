"""The user's own Python: functions `module:function` and notifiers `package.module.Class` of a pipeline file, found
below the home folder."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from airflow.sdk.bases.notifier import BaseNotifier


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


def load_notifier(path: str) -> type[BaseNotifier]:
    """Returns the class `package.module.Class`; also one below `include`. Raises ConfigError if it is no notifier."""
    from airflow.sdk.bases.notifier import BaseNotifier

    module, _, name = path.rpartition(".")
    found: Any = load_function(f"{module}:{name}", "alerts: notifier")
    if not (isinstance(found, type) and issubclass(found, BaseNotifier)):
        raise ConfigError(f"alerts: {path} is no BaseNotifier of Airflow's")
    return found


def made_notifier(path: str, arguments: Mapping[str, Any]) -> BaseNotifier:
    """Returns a notifier of the class `path`. Raises ConfigError if that is none, or if it does not take such
    arguments."""
    found = load_notifier(path)
    try:
        takes = inspect.signature(found)
        takes.bind_partial(**arguments)  # names one that is not known, before one that is missing
        takes.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"alerts: {found.__name__} does not take these arguments: {error}") from None
    return found(**arguments)
