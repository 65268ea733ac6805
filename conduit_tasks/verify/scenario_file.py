"""The pipeline file of a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conduit_tasks.verify.classes import (
    CLONED,
    FAILED,
    FILTERED,
    LATE_FAILED,
    LATE_FILTERED,
    SKIPPED,
    SPOILED,
)
from conduit_tasks.verify.receiver import PLUGIN, TIMEOUT

if TYPE_CHECKING:
    from conduit_tasks.verify.scenario import Scenario

PIPELINE = "verified"
"""Id of the pipeline."""
FOLDER = 'path: out/few, format: parquet, rows-per-file: "2"'
"""Settings of `few` where several tasks write a folder."""


def _when(c: int) -> str:
    return f"condition: '{{{{ eq .Payload.After.c {c} }}}}'"


def _path(s: Scenario, source: str) -> str:
    """Returns the path of a source's file, and the setting for the case that it is gone."""
    if not s.vanishing:
        return f"data/{source}.jsonl"
    return f'"data/{source}*.jsonl", missing: {"skip" if s.vanishing == "skip" else "fail"}'


def text_of(s: Scenario) -> str:
    """Returns the pipeline file."""
    lines = [
        'version: "2.2"',
        "pipelines:",
        f"  - id: {PIPELINE}",
        f"    micro-batch: {{max-records: {s.batch}}}",
        f"    isolate: {str(s.isolate).lower()}",
        f"    spool: {{retention: {s.retention}}}",
    ]
    if s.resends:
        lines.append("    event-time: .Payload.After.n")
    if s.lasts:
        lines.append('    schedule: "@continuous"')
    if s.lag is not None:
        lines.append(f"    lag-budget: {{records: {s.lag}}}")
    if not s.strict:
        window = "{window-size: 12, window-nack-threshold: 11}" if s.wide else "{window-size: 0}"
        lines.append(f"    dead-letter-queue: {window}")
    lines.append("    connectors:")
    for source in s.sources:
        lines += [
            f"      - id: {source}",
            "        type: source",
            f"        plugin: {'sqs' if s.queued else 'file'}",
            f"        ack-on: {'stored' if s.stored else 'delivered'}",
            f"        settings: {{queue: {source}, format: json, wait: 0s, visibility-timeout: 20s}}"
            if s.queued
            else f"        settings: {{path: {_path(s, source)}, format: jsonl, key: k, settle: 0s}}",
            "        processors:",
            "          - {id: mark, plugin: field.set,"
            " settings: {field: .Metadata.mark, value: 'm{{ .Payload.After.k }}'}}",
            "          - {id: deadly, plugin: python, settings: {call: 'conduit_tasks.verify.deadly:touch'}}",
            f"          - {{id: drop, plugin: filter, {_when(FILTERED)}}}",
            f"          - {{id: fail, plugin: error, settings: {{message: failed}}, {_when(FAILED)}}}",
        ]
    parks = ", order-by: key, park-keys: true" if s.parks else ""
    tasks = f", parallelism: {s.tasks}" if s.tasks > 1 and not s.alone else ""
    spoils = "plugin: error, settings: {message: spoiled}"
    if s.resends:
        spoils = "plugin: python, settings: {call: 'conduit_tasks.verify.deadly:spoil'}"
    processors = [
        "        processors:",
        f"          - {{id: skip, plugin: filter, {_when(SKIPPED)}}}",
        f"          - {{id: spoil, {spoils}, {_when(SPOILED)}}}",
    ]
    lines += [
        "      - id: file",
        "        type: destination",
        "        plugin: file",
        "        settings: {path: out/file.jsonl, format: payload}",
        f"        delivery: {{timeout: 2s{parks}}}",
        *processors,
        "      - id: web",
        "        type: destination",
        f"        plugin: {PLUGIN}",
        f"        settings: {{alone: '{str(s.alone).lower()}'}}",
        f"        delivery: {{timeout: {TIMEOUT:g}s, retry: 3, order-by: {s.order}, max-unconfirmed: {s.unconfirmed}"
        f"{', park-keys: true' if s.parks else ''}{tasks}}}",
        "      - id: table",
        "        type: destination",
        "        plugin: sql",
        "        delivery: {timeout: 2s}",
        '        settings: {url: "sqlite:///out/table.db", table: events, chunk: 7,'
        ' columns: "s=.Payload.After.s, n:int=.Payload.After.n"}',
    ]
    if s.few:
        folder = bool(s.bulk) and not s.alone
        order = f", order-by: {s.bulk}{tasks}" if folder else ""
        any_of = ", ".join(f"{{exact: {{mark: m{key}}}}}" for key in sorted(s.wanted))
        lines += [
            "      - id: few",
            "        type: destination",
            "        plugin: file",
            f"        settings: {{{FOLDER if folder else 'path: out/few.jsonl, format: payload'}}}",
            f"        delivery: {{timeout: 2s{order}}}",
            f"        trigger: {{filters: [{{any: [{any_of}]}}]}}",
            *(processors if s.processed else []),
        ]
    if s.pipeline_processors:
        lines += [
            "    processors:",
            f"      - {{id: drop, plugin: filter, {_when(LATE_FILTERED)}}}",
            f"      - {{id: fail, plugin: error, settings: {{message: late}}, {_when(LATE_FAILED)}}}",
            f"      - {{id: twice, plugin: clone, settings: {{count: 1}}, {_when(CLONED)}}}",
        ]
    return "\n".join(lines) + "\n"
