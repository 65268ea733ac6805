"""Checks that need the plugins: their names, settings, sides and guarantees, filters, conditions. Imports the modules
of the plugins in the file, so not for parsing DAGs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from conduit_tasks.connectors.capabilities import Watchable
from conduit_tasks.connectors.plugins import is_standalone, parse_plugin, plugin_name
from conduit_tasks.errors import ConfigError, UnknownPlugin
from conduit_tasks.pipeline.findings import Findings, Path, nearest
from conduit_tasks.pipeline.model import ConnectorKeys, DeliveryKeys, PipelineKeys, ProcessorKeys
from conduit_tasks.pipeline.parallel import must_be, of_class, reason
from conduit_tasks.pipeline.pipe_names import check_batch_wise
from conduit_tasks.pipeline.validate import DEAD_LETTERS, check_with, sections
from conduit_tasks.pipeline.validate_connection import connected, with_connection
from conduit_tasks.pipeline.validate_settings import check_settings
from conduit_tasks.topology import INDEX_PIPES, Processor

log = logging.getLogger(__name__)


class _Kind(NamedTuple):
    """Look-up of plugins of one kind, and their known names (needed only if a name is unknown)."""

    find: Callable[[str], Any]
    known: Callable[[], Mapping[str, Any]]


def check_plugins(keys: PipelineKeys, report: Findings, base: Path) -> None:
    """Checks plugins, their settings, filters and conditions; imports the modules that know them."""
    from conduit_tasks.connectors import registry
    from conduit_tasks.connectors.letters import unfit
    from conduit_tasks.filters import compile_filters

    sources = _Kind(registry.source_class, registry.known)
    destinations = _Kind(registry.destination_class, registry.known)
    for path, section in sections(keys, base):
        for n, processor in enumerate(section):
            _check_processor(processor, report, (*path, n), record_wise=path[-2:] == DEAD_LETTERS)
    queues = [((*base, "dead-letter-queue"), keys.dead_letter_queue)]
    found: dict[str, Any] = {}
    for n, connector in enumerate(keys.connectors):
        path = (*base, "connectors", n)
        kind = sources if connector.type == "source" else destinations
        cls = _check_connector(kind, connector.plugin, connector.settings, report, path)
        if cls and connector.type == "source":
            found[connector.id] = cls
        if connector.trigger:
            for i, one in enumerate(connector.trigger.filters):
                check_with(compile_filters, [one], "E206", report, (*path, "trigger", "filters", i))
        if cls and connector.type == "destination":
            for option, (said, hint) in cls.unkept(connector.settings).items():
                report.add("W202", (*path, "settings", option), f"'{connector.plugin}': {said}", hint)
            _check_guarantee(connector, cls, report, path)
        if connector.dead_letter_queue:
            queues.append(((*path, "dead-letter-queue"), connector.dead_letter_queue))
    for path, queue in queues:
        if queue.plugin and parse_plugin(queue.plugin).name != "log":
            cls = _check_connector(destinations, queue.plugin, queue.settings, report, path)
            if cls and (said := unfit(cls)):
                report.add("E204", (*path, "plugin"), said)
    _check_wake(keys, found, report, (*base, "wake"))
    _check_called(keys, report, base)


def _check_called(keys: PipelineKeys, report: Findings, base: Path) -> None:
    """Reports handlers and notifiers that the file names and that cannot be loaded, and assets of steps that Airflow
    does not take."""
    from conduit_tasks.include import load_function, load_notifier

    called = [((*base, "handlers", n, "call"), handler.call) for n, handler in enumerate(keys.handlers)]
    for n, alert in enumerate(keys.alerts):
        path, arguments = (*base, "alerts", n, "notifier"), (*base, "alerts", n, "arguments")
        if not report.wrong(path):
            check_with(partial(_imported, load_notifier), alert.notifier, "E212", report, path)
        if not (report.wrong(path) or report.wrong(arguments)):
            check_with(partial(_taken_by_notifier, alert.notifier), alert.arguments, "E212", report, arguments)
    for n, connector in enumerate(keys.connectors):
        if connector.on_delivered is not None and connector.on_delivered.call is not None:
            called.append(((*base, "connectors", n, "on-delivered", "call"), connector.on_delivered.call))
        if connector.on_delivered is not None and connector.on_delivered.asset is not None:
            path = (*base, "connectors", n, "on-delivered", "asset")
            if not report.wrong(path):
                check_with(_taken_by_airflow, connector.on_delivered.asset, "E217", report, path)
    for path, call in called:
        if not report.wrong(path):
            check_with(partial(_imported, partial(load_function, where=_key_of(path))), call, "E212", report, path)


def _imported(load: Callable[[str], Any], name: str) -> None:
    """Raises ConfigError if it cannot be loaded. In a run an error of the module's own code may pass, and the task is
    tried again; here it is told, whatever it is."""
    try:
        load(name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"importing {name} fails: {type(error).__name__}: {error}") from error


def _taken_by_notifier(notifier: str, arguments: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments that the notifier's class does not take, or says are wrong."""
    from conduit_tasks.include import made_notifier

    try:
        made_notifier(notifier, arguments)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - somebody else's class may need what is there only in a task
        log.debug("%s was not made: %s", notifier, type(error).__name__)


def _taken_by_airflow(asset: str) -> None:
    """Raises ConfigError for an asset that Airflow, or its provider of that scheme, does not take."""
    from airflow.sdk import Asset

    try:
        Asset(asset)
    except ValueError as error:
        raise ConfigError(f"{asset} is no asset of Airflow's: {error}") from None


def _key_of(path: Path) -> str:
    """Returns the nearest key above the last one: of `handlers[2].call` it is `handlers`."""
    return next(str(part) for part in reversed(path[:-1]) if isinstance(part, str))


def _check_wake(keys: PipelineKeys, sources: Mapping[str, Any], report: Findings, path: Path) -> None:
    """Reports sources of `wake` that cannot be looked at; `sources`: the classes that were found, by id."""
    if keys.wake is None or not sources:
        return
    hint = "among those that can are file, gateway and kafka; the schedule takes care of the rest"
    if not keys.wake.sources and not any(issubclass(cls, Watchable) for cls in sources.values()):
        report.add("E215", path, "none of the sources can be looked at between two runs", hint)
    for id in keys.wake.sources:
        if id in sources and not issubclass(sources[id], Watchable):
            name = sources[id].spec.name
            report.add("E215", path, f"'{id}' ({name}) cannot be looked at between two runs", hint)


def _check_processor(processor: ProcessorKeys, report: Findings, path: Path, *, record_wise: bool) -> None:
    from conduit_tasks.processors import registry
    from conduit_tasks.templates import template

    cls = _find(_Kind(registry.processor_class, registry.known), processor.plugin, report, path)
    if processor.condition:
        check_with(template.compile, processor.condition, "E207", report, (*path, "condition"))
    if cls:
        condition = None if report.wrong((*path, "condition")) else processor.condition
        topology = Processor(processor.id, parse_plugin(processor.plugin).name, processor.settings, condition)
        try:
            spec = registry.variant(topology.plugin, topology.settings).spec
        except ConfigError:
            spec = None
        check_settings(
            lambda settings: registry.build(replace(topology, settings=settings)),
            processor.settings,
            report,
            path,
            spec=spec,
            what=f"processor {processor.id}: ",
        )
        if record_wise and not report.wrong(path) and registry.is_frame(topology):
            report.add(
                "E204",
                (*path, "plugin"),
                f"'{processor.plugin}' sees a whole micro-batch, dead letters come one by one",
                "use a record-wise processor",
            )


def _check_connector(kind: _Kind, plugin: str, settings: Mapping[str, str], report: Findings, path: Path) -> Any:
    """Returns the connector's class, or None if there is none. Checks its settings with its constructor, which opens
    nothing."""
    cls = _find(kind, plugin, report, path)
    if cls:
        check_settings(cls, with_connection(cls.spec, settings, report, path), report, path, spec=cls.spec)
    return cls


def _find(kind: _Kind, plugin: str, report: Findings, path: Path) -> Any:
    name = plugin_name(plugin)
    if report.wrong((*path, "plugin")):
        return None
    try:
        found = kind.find(name)
        if is_standalone(plugin):
            found.spec  # noqa: B018 - it is its program that has it
        return found
    except UnknownPlugin as error:
        if is_standalone(plugin):
            report.add("E203", (*path, "plugin"), str(error))
            return None
        known = kind.known()
        if name in known:
            report.add("E204", (*path, "plugin"), str(error))
        else:
            report.add("E203", (*path, "plugin"), f"there is no plugin '{name}'", nearest(name, known))
    except ConfigError as error:
        report.add("E204", (*path, "plugin"), str(error))
    return None


def _check_guarantee(connector: ConnectorKeys, cls: Any, report: Findings, path: Path) -> None:
    """Reports a guarantee that the destination cannot give (SEMANTICS B8), and a pipe with numbers that it does not use
    (O5–O6r)."""
    from conduit_tasks.connectors.base import BatchDestination

    delivery = connector.delivery
    if delivery is None:
        return
    batch_wise = issubclass(cls, BatchDestination)
    if delivery.guarantee == "effectively-once" and not cls.effectively_once:
        report.add(
            "E211",
            (*path, "delivery", "guarantee"),
            f"'{connector.plugin}' cannot store its position together with the data",
            "write guarantee: at-least-once; the receiver can drop repeated records by their id",
        )
    if delivery.guarantee == "at-most-once" and batch_wise and not cls.effectively_once:
        report.add(
            "E211",
            (*path, "delivery", "guarantee"),
            f"'{connector.plugin}' writes in batches, and a batch that fails is written again",
            "write guarantee: at-least-once",
        )
    if delivery.guarantee == "at-most-once" and not batch_wise:
        report.add(
            "W204",
            (*path, "delivery", "guarantee"),
            "holds across the crash of a machine only where Redis has `appendfsync always`: with everysec it may "
            "forget what was sent in its last second, which is then sent twice",
            "set appendfsync always (`conduit broker check` says what it is), or write guarantee: at-least-once",
        )
    alone = _check_parallelism(delivery, connector, cls, report, (*path, "delivery", "parallelism"))
    if batch_wise:
        several = delivery.parallelism != 1 and not reason(delivery, bool(connector.processors), cls)
        check_batch_wise(
            delivery,
            connector.plugin,
            report,
            (*path, "delivery"),
            one_task=not several or alone,
            keeps_index=cls.keeps_index,
        )
    if delivery.pipe in INDEX_PIPES and batch_wise and not cls.keeps_index:
        report.add(
            "W202",
            (*path, "delivery", "pipe"),
            f"'{connector.plugin}' keeps no index: it writes in order from where it is confirmed, whatever the pipe",
            "write pipe: stream",
        )


def _check_parallelism(
    delivery: DeliveryKeys, connector: ConnectorKeys, cls: Any, report: Findings, path: Path
) -> bool:
    """Reports what `parallelism` asks for and the destination does not have, or has only if something is so. Returns
    whether it has one task, whatever is written."""
    asked, auto = delivery.parallelism != 1, delivery.parallelism == "auto"
    if why := of_class(cls, connector.settings):
        if asked:
            report.add(
                "W202" if auto else "E211",
                path,
                f"one task delivers to '{connector.plugin}': {why}",
                "remove parallelism; destinations beside each other have tasks of their own",
            )
        return True
    processors = bool(connector.processors)
    if asked and (refused := reason(delivery, processors, cls)) and not reason(delivery, processors):
        # What the plugin is asked for; `validate_delivery` has said the rest.
        says = f"one task delivers to '{connector.plugin}': {refused.says}"
        report.add("W202" if auto else "E211", path, says, refused.hint)
        return True
    if asked and (why := of_class(cls, connected(cls.spec, connector.settings))):
        # The connection may be another one where the task runs.
        said = f"one task delivers to '{connector.plugin}' with this connection: {why}"
        report.add("W202", path, said, "remove parallelism")
        return True
    if not asked or not (what := must_be(cls, connector.settings)):
        return False
    if auto:
        report.add("W202", path, f"one task delivers to '{connector.plugin}': {what}", "if it does, write a number")
    else:
        hint = "look in the connector's documentation; if it does not, remove parallelism"
        report.add("W204", path, f"several tasks deliver to '{connector.plugin}': {what}", hint)
    return auto
