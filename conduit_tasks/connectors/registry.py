"""Connectors by name: this project's, and those of the entry point `conduit.connectors`; also when a source is acked,
and how long micro-batches stay because of a queue.

Importing this module imports no connector; asking for one imports its module.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from conduit_tasks import topology
from conduit_tasks.connectors.base import BatchDestination, Described, RecordDestination, Source
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.plugins import is_standalone, parse_plugin, plugin_name
from conduit_tasks.errors import ConfigError, UnknownPlugin

_FOLDERS = ("delta", "file", "http", "iceberg", "kafka", "mysql", "postgres", "redis", "s3", "singer", "sql", "sqs")
_MODULES = ("generator", "log")
_OWN = {"gateway": "conduit_tasks.gateway.connector", "spark": "conduit_tasks.spark.connector"}
BUILTIN = {
    **{name: f"conduit_tasks.connectors.{name}.connector" for name in _FOLDERS},
    **{name: f"conduit_tasks.connectors.{name}" for name in _MODULES},
    **_OWN,
}
"""name → module with `SOURCE`, `DESTINATION` or both. Those of `_OWN` are connectors to what a package of this project
is; they stand there, as those of others stand in their packages."""

GROUP = "conduit.connectors"
"""Group of entry points; each names such a module."""

Destination = RecordDestination | BatchDestination


@lru_cache(maxsize=1)
def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _names() -> list[str]:
    return sorted({*BUILTIN, *_added()})


def known() -> dict[str, Described]:
    """Returns every connector by name, sorted. One that cannot be loaded is there with its `error`."""
    out = {}
    for name in _names():
        try:
            out[name] = _load(name)
        except ConfigError as error:
            module = BUILTIN.get(name) or _added()[name].value
            out[name] = Described(module=module, error=str(error))
    return out


def source_class(plugin: str) -> type[Source]:
    """Returns the source of a plugin. `builtin:` in front and `@version` behind are allowed, as in Conduit. For
    any standalone connector there is a class, whose program is looked for when its specification is needed.

    Raises UnknownPlugin if there is none (the nearest is named) or if it is only a destination, and ConfigError if its
    module cannot be loaded.
    """
    name = plugin_name(plugin)
    found = described(name).source
    if found is None:
        raise UnknownPlugin(f"'{name}' is a destination only; {_these('source')}")
    return found


def destination_class(plugin: str) -> type[RecordDestination] | type[BatchDestination]:
    """Returns the destination of a plugin; otherwise as `source_class`."""
    name = plugin_name(plugin)
    found = described(name).destination
    if found is None:
        raise UnknownPlugin(f"'{name}' is a source only; {_these('destination')}")
    return found


def ack_on(source: topology.Source) -> Literal["delivered", "stored"]:
    """Returns when a source is acked (SEMANTICS T2): as its file says, otherwise as its class does. Raises as
    `source_class`."""
    return source.ack_on or source_class(source.plugin).ack_on


def comes_again(pipeline: topology.Pipeline) -> float:
    """Returns the seconds for which a message of one of the pipeline's queues may come again after its ack; 0 without
    such a queue. Raises as `source_class`."""
    classes = (source_class(source.plugin) for source in pipeline.sources)
    return max((of.comes_again for of in classes if issubclass(of, Queue)), default=0.0)


def kept_for(pipeline: topology.Pipeline) -> float:
    """Returns the seconds for which a delivered micro-batch stays at least: `spool.retention`, and as long as its
    messages may come again, which are known by it. Raises as `source_class`."""
    return max(pipeline.spool_retention, comes_again(pipeline))


def described(name: str) -> Described:
    """Returns both sides of a connector. Raises as `source_class`."""
    if is_standalone(name):
        from conduit_tasks.connectors.standalone.plugin import described as standalone

        return standalone(name.strip())
    name = parse_plugin(name).name
    # What is installed is asked for other names only: to look through it takes each process 12 ms of CPU.
    if name not in BUILTIN and name not in _added():
        near = difflib.get_close_matches(name, _names(), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_names())}"
        raise UnknownPlugin(f"there is no connector '{name}'; {hint}")
    return _load(name)


@lru_cache(maxsize=256)
def _load(name: str) -> Described:
    where = BUILTIN.get(name) or _added()[name].value
    try:
        module: Any = import_module(where) if name in BUILTIN else _added()[name].load()
    except Exception as error:
        raise ConfigError(f"connector '{name}': {where} cannot be loaded: {error}; install what it needs") from error
    source, destination = getattr(module, "SOURCE", None), getattr(module, "DESTINATION", None)
    if not (_is(source, Source) and _is(destination, RecordDestination | BatchDestination)):
        raise ConfigError(f"connector '{name}': SOURCE or DESTINATION of {where} is not a class of connectors.base")
    if source is None and destination is None:
        raise ConfigError(f"connector '{name}': {where} offers neither SOURCE nor DESTINATION")
    return Described(source, destination, where)


def _is(cls: Any, kind: Any) -> bool:
    return cls is None or (isinstance(cls, type) and issubclass(cls, kind))


def _these(side: str) -> str:
    return f"as a {side} there are {', '.join(n for n, d in known().items() if getattr(d, side) is not None)}"
