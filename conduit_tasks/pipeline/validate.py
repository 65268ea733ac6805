"""Checks of a pipeline that need no plugin: ends, ids, schedule, wake, handlers, nack windows, `durability`, keys of
the wrong side; and Conduit's renamed keys (SEMANTICS C1, C6, B8, O). Each finding has a stable code, a place and a
hint."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from conduit_tasks.connectors.plugins import KINDS, parse_plugin
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.assets import wrong
from conduit_tasks.pipeline.findings import Findings, Path, nearest
from conduit_tasks.pipeline.model import ConnectorKeys, DeadLetterKeys, PipelineKeys, ProcessorKeys, StepKeys
from conduit_tasks.pipeline.schedule import parse_schedule
from conduit_tasks.pipeline.validate_delivery import check_delivery, check_letters
from conduit_tasks.record.fields import parse as field_reference
from conduit_tasks.record.searchable import searchable
from conduit_tasks.settings import STORE_HINT, nothing_stored, settings

GATEWAY = "gateway"
"""The source whose producers are answered by `conduit gateway`."""
_SOURCE_ONLY = {"ack_on": "ack-on", "durability": "durability"}
_DESTINATION_ONLY = {
    "trigger": "trigger",
    "delivery": "delivery",
    "dead_letter_queue": "dead-letter-queue",
    "deadline": "deadline",
    "on_delivered": "on-delivered",
}
DEAD_LETTERS = ("dead-letter-queue", "processors")
"""Path of the processors of dead letters, below the pipeline or connector they belong to."""
_UPDATE = 'set version: "2.2"'
_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def check_version(keys: dict[str, Any], report: Findings, base: Path, version: str) -> None:
    """Applies Conduit's changelog: deprecated names are renamed in place with a warning, names newer than the file's
    version get a warning."""
    for path, processor in _raw_processors(keys, base):
        if "type" in processor:
            if "plugin" not in processor:
                processor["plugin"] = processor["type"]
            del processor["type"]
            report.add("W101", (*path, "type"), "a processor's 'type' is deprecated", "rename it to plugin")
        elif "plugin" in processor and version in ("2.0", "2.1"):
            report.add("W103", (*path, "plugin"), "'plugin' is newer than the file's version", _UPDATE)
        if "condition" in processor and version == "2.0":
            report.add("W103", (*path, "condition"), "'condition' is newer than the file's version", _UPDATE)


def check(keys: PipelineKeys, report: Findings, base: Path) -> None:
    """Makes all checks that need no plugin (`validate_plugins` makes the others): light enough for parsing DAGs."""
    _check_ends(keys, report, base)
    _check_unique([c.id for c in keys.connectors], "connector", report, (*base, "connectors"))
    for path, section in sections(keys, base):
        _check_unique([p.id for p in section], "processor", report, path)
        for n, processor in enumerate(section):
            _check_plugin_reference(processor.plugin, report, (*path, n, "plugin"), connector=False)
    _check_run(keys, report, base)
    _check_dead_letters(keys.dead_letter_queue, report, (*base, "dead-letter-queue"))
    for n, connector in enumerate(keys.connectors):
        path = (*base, "connectors", n)
        _check_plugin_reference(connector.plugin, report, (*path, "plugin"))
        misplaced = _DESTINATION_ONLY if connector.type == "source" else _SOURCE_ONLY
        for name, key in misplaced.items():
            if getattr(connector, name) is not None:
                other = "destination" if connector.type == "source" else "source"
                report.add(
                    "E107", (*path, key), f"'{key}' belongs to a {other}", f"move it to a connector of type: {other}"
                )
        if (step := connector.on_delivered) is not None:
            _check_step(step, report, (*path, "on-delivered"))
        for asset in connector.asset or ():
            _check_asset(asset, report, (*path, "asset"))
        _check_durability(connector, keys.spool.path, report, path)
        check_delivery(connector, keys.dead_letter_queue, report, path)
        if connector.dead_letter_queue:
            _check_dead_letters(connector.dead_letter_queue, report, (*path, "dead-letter-queue"))


def _check_ends(keys: PipelineKeys, report: Findings, base: Path) -> None:
    """Reports a missing source or destination (SEMANTICS C1)."""
    types = Counter(str(c.type) for c in keys.connectors)
    for code, end, consequence in (
        ("E201", "source", "there is nothing to read"),
        ("E202", "destination", "there is nowhere to deliver to"),
    ):
        if not types[end]:
            report.add(
                code,
                (*base, "connectors") if keys.connectors else base,
                f"the pipeline '{keys.id}' has no {end}: {consequence}",
                f"add a connector with type: {end}",
            )


def _check_unique(ids: list[str], what: str, report: Findings, path: Path) -> None:
    seen: set[str] = set()
    for n, id in enumerate(ids):
        if id in seen:
            report.add("E105", (*path, n, "id"), f"the {what} id '{id}' is used twice", "give each an id of its own")
        seen.add(id)


def _check_plugin_reference(text: str, report: Findings, path: Path, *, connector: bool = True) -> None:
    reference = parse_plugin(text)
    if reference.kind == "standalone" and not connector:
        report.add(
            "E204",
            path,
            f"'{text}': standalone processors are WebAssembly for Conduit and cannot run here",
            f"use a processor of this project (builtin:{reference.name}, if there is one), `python`, or a Python "
            "package with the entry point conduit.processors",
        )
    elif reference.kind not in ("", *KINDS):
        report.add("E204", path, f"'{reference.kind}:' is no kind of plugin", f"write builtin:{reference.name}")
    elif not reference.name:
        report.add("E102", path, "the plugin has no name", "write for example builtin:file")
    elif reference.version not in ("", "latest") and reference.kind != "standalone":
        report.add("W105", path, f"the version '{reference.version}' is ignored", f"write {reference.name}")


def _check_spool(path: str | None, report: Findings, place: Path) -> None:
    if wrong := nothing_stored(path or ""):
        report.add("E103", place, f"path: {wrong}", STORE_HINT)


def _check_durability(connector: ConnectorKeys, spool: str | None, report: Findings, path: Path) -> None:
    """Reports a `durability` that cannot hold (SEMANTICS T2): only the gateway answers a producer."""
    if connector.type != "source" or connector.durability is None:
        return
    plugin = parse_plugin(connector.plugin).name
    if plugin != GATEWAY:
        report.add(
            "E107",
            (*path, "durability"),
            f"'{plugin}' answers no producer, so 'durability' has no meaning here",
            f"remove it; it belongs to a source with plugin: {GATEWAY}",
        )
    elif connector.durability == "spool" and connector.settings.get("pipe"):
        report.add(
            "E209",
            (*path, "durability"),
            "the journal of durability: spool does not keep what a pipe knows, so that after the loss of Redis it "
            "would let pass again what had passed, or wait for ever",
            "remove durability, or the pipe",
        )
    elif connector.durability == "spool" and "://" in (root := spool or settings().spool).removeprefix("file://"):
        report.add(
            "E214",
            (*path, "durability"),
            f"durability: spool appends to files, which {root.partition('://')[0]}:// does not have",
            "give spool.path (or CONDUIT_SPOOL) a folder, or write durability: redis",
        )


def _check_asset(asset: str, report: Findings, path: Path) -> None:
    if said := wrong(asset):
        report.add("E217", path, said, "write for example s3://bucket/events, or a name")


def _check_step(step: StepKeys, report: Findings, path: Path) -> None:
    if len(step.model_dump(exclude_none=True)) != 1:
        report.add("E102", path, "a step is one thing", "write dag: NAME, asset: NAME, or call: module:function")
    elif step.asset is not None:
        _check_asset(step.asset, report, (*path, "asset"))
    elif step.call is not None and not _CALL.fullmatch(step.call):
        hint = "write module:function, for example include.steps:tell"
        report.add("E212", (*path, "call"), f"'{step.call}' is not a function", hint)


def _check_run(keys: PipelineKeys, report: Findings, base: Path) -> None:
    check_with(parse_schedule, keys.schedule, "E208", report, (*base, "schedule"))
    if keys.replay_interval.strip() in ("@continuous", "none"):
        report.add("E208", (*base, "replay-interval"), "a replay needs an interval", "write @daily, @hourly or cron")
    else:
        check_with(parse_schedule, keys.replay_interval, "E208", report, (*base, "replay-interval"))
    if keys.data_intervals and (schedule := keys.schedule.strip()) in ("@continuous", "none"):
        report.add("E208", (*base, "data-intervals"), f"{schedule} has no intervals", "remove it, or write @hourly")
    _check_wake(keys, report, base)
    if keys.drain_limit is not None and keys.drain_limit <= 0:
        report.add("E103", (*base, "drain-limit"), "drain-limit must be above zero", "write for example 60s")
    recovery = keys.error_recovery
    if recovery.max_delay < recovery.min_delay:
        report.add(
            "E103",
            (*base, "error-recovery", "max-delay"),
            "max-delay is below min-delay",
            "raise it, or lower min-delay",
        )
    _check_spool(keys.spool.path, report, (*base, "spool", "path"))
    if keys.event_time is not None:
        check_with(field_reference, keys.event_time, "E212", report, (*base, "event-time"))
    _check_fields(keys, report, base)
    for n, handler in enumerate(keys.handlers):
        if not _CALL.fullmatch(handler.call):
            hint = "write module:function, for example include.handlers:notify"
            report.add("E212", (*base, "handlers", n, "call"), f"'{handler.call}' is not a function", hint)
    budget, batch = keys.lag_budget, keys.micro_batch
    for key, limit, one in (
        ("records", budget and budget.records, batch.max_records),
        ("bytes", budget and budget.bytes, batch.max_bytes),
    ):
        if limit and one and limit < one:
            report.add(
                "W201",
                (*base, "lag-budget", key),
                f"the lag budget of {limit} {key} is below one micro-batch of {one}",
                "raise the budget to at least one micro-batch, or lower micro-batch",
            )


def _check_fields(keys: PipelineKeys, report: Findings, base: Path) -> None:
    for n, field in enumerate(keys.mask):
        check_with(field_reference, field, "E212", report, (*base, "mask", n))
    if "index" in keys.model_fields_set and not report.wrong((*base, "mask")):
        for n, field in enumerate(keys.index):
            check_with(partial(searchable, mask=keys.mask), field, "E212", report, (*base, "index", n))


def _check_wake(keys: PipelineKeys, report: Findings, base: Path) -> None:
    wake, path = keys.wake, (*base, "wake")
    if wake is None:
        return
    if keys.schedule.strip() == "@continuous":
        hint = "remove wake, or write a schedule such as @hourly"
        report.add("E215", path, "a pipeline that runs @continuous never sleeps", hint)
    known = [c.id for c in keys.connectors if c.type == "source"]
    for n, id in enumerate(wake.sources):
        if id not in known:
            place = (*path, n) if (*path, n) in report.values else (*path, "sources", n)
            report.add("E215", place, f"there is no source '{id}' to be woken by", nearest(id, known))
    for key, seconds in (("look", wake.look), ("pause", wake.pause)):
        if seconds < 1:
            report.add("E103", (*path, key), f"{key} must be a second at least", f"write for example {key}: 5s")


def _check_dead_letters(queue: DeadLetterKeys, report: Findings, path: Path) -> None:
    size, threshold = queue.window_size, queue.window_nack_threshold
    if queue.plugin:
        _check_plugin_reference(queue.plugin, report, (*path, "plugin"))
    check_letters(queue, report, path)
    if size and threshold >= size:
        report.add(
            "E210",
            (*path, "window-nack-threshold"),
            f"a window of {size} never holds more than {threshold} nacks, so it never stops the pipeline",
            f"write a threshold below {size}, or window-size: 0 for no limit",
        )
    if not size and threshold:
        report.add(
            "W202",
            (*path, "window-nack-threshold"),
            "without a window (window-size: 0) the threshold has no effect",
            "remove it, or give the window a size",
        )
    if queue.plugin and parse_plugin(queue.plugin).name == "log" and (size == 0 or threshold > 0):
        report.add(
            "W203",
            (*path, "plugin"),
            "failed records are dropped: for them the guarantee is at most once",
            "leave the plugin out to keep them in the dead-letter store",
        )


def check_with(check: Any, value: Any, code: str, report: Findings, path: Path) -> None:
    """Reports the ConfigError of `check(value)`, if there is one."""
    try:
        check(value)
    except ConfigError as error:
        report.add(code, path, str(error))


def sections(keys: PipelineKeys, base: Path) -> Iterator[tuple[Path, list[ProcessorKeys]]]:
    """Yields the processor sections of each connector, of the pipeline (SEMANTICS C2), and of their dead letters."""
    for n, connector in enumerate(keys.connectors):
        yield (*base, "connectors", n, "processors"), connector.processors
        if connector.dead_letter_queue:
            yield (*base, "connectors", n, *DEAD_LETTERS), connector.dead_letter_queue.processors
    yield (*base, "processors"), keys.processors
    yield (*base, *DEAD_LETTERS), keys.dead_letter_queue.processors


def _raw_processors(keys: dict[str, Any], base: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    owners: list[tuple[Path, Any]] = [(base, keys)]
    connectors = keys.get("connectors")
    if isinstance(connectors, list):
        owners += [((*base, "connectors", n), c) for n, c in enumerate(connectors)]
    for path, owner in owners:
        section = owner.get("processors") if isinstance(owner, dict) else None
        for n, processor in enumerate(section if isinstance(section, list) else []):
            if isinstance(processor, dict):
                yield (*path, "processors", n), processor
