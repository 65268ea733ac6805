"""Processors by name: this project's, and others added through the entry point `conduit.processors`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from conduit_tasks.connectors.plugins import parse_plugin
from conduit_tasks.errors import ConfigError, UnknownPlugin
from conduit_tasks.processors.base import FrameProcessor, RecordProcessor
from conduit_tasks.processors.many import ManyProcessor
from conduit_tasks.topology import Processor

AnyProcessor = type[RecordProcessor] | type[FrameProcessor]

BUILTIN = {
    "avro.decode": "avro:DecodeAvro",
    "avro.encode": "avro:EncodeAvro",
    "base64.decode": "encoding:DecodeBase64",
    "base64.encode": "encoding:EncodeBase64",
    "clone": "derive:Clone",
    "cohere.command": "cohere:Command",
    "cohere.embed": "cohere:Embed",
    "cohere.rerank": "cohere:Rerank",
    "custom.javascript": "javascript:JavaScript",
    "dedupe": "dedupe:Dedupe",
    "enrich": "enrich:Enrich",
    "error": "flow:Error",
    "field.convert": "convert:ConvertField",
    "field.exclude": "field:ExcludeFields",
    "field.rename": "field:RenameFields",
    "field.set": "field:SetField",
    "filter": "flow:Filter",
    "json.decode": "encoding:DecodeJson",
    "json.encode": "encoding:EncodeJson",
    "mask": "mask:Mask",
    "ollama": "ollama:Ollama",
    "openai.embeddings": "openai:Embeddings",
    "openai.textgen": "openai:TextGen",
    "python": "python:PythonRecord",
    "schema.check": "schema_check:SchemaCheck",
    "split": "derive:Split",
    "sql": "sql:Sql",
    "unwrap.debezium": "unwrap:UnwrapDebezium",
    "unwrap.kafkaconnect": "unwrap:UnwrapKafkaConnect",
    "unwrap.opencdc": "unwrap:UnwrapOpencdc",
    "webhook.http": "webhook:Webhook",
}
"""name → module:class below `conduit_tasks.processors`; a module is imported when its processor is asked for."""

GROUP = "conduit.processors"


@lru_cache(maxsize=1)
def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def known() -> dict[str, str]:
    """Returns every processor's name with its summary, sorted. If it cannot be loaded, the summary is the error."""
    summaries = {}
    for name in sorted({*BUILTIN, *_added()}):
        try:
            summaries[name] = processor_class(name).spec.summary
        except ConfigError as error:
            summaries[name] = f"cannot be loaded: {error}"
    return summaries


@lru_cache(maxsize=256)
def processor_class(plugin: str) -> AnyProcessor:
    """Returns the class of a plugin (`builtin:` in front and `@version` behind are allowed, as in Conduit).

    Raises UnknownPlugin that names the nearest names, ConfigError if an added plugin cannot be loaded.
    """
    name = parse_plugin(plugin).name
    if name in BUILTIN:
        module, cls = BUILTIN[name].split(":")
        return getattr(import_module(f"conduit_tasks.processors.{module}"), cls)
    point = _added().get(name)
    if point is None:
        near = difflib.get_close_matches(name, [*BUILTIN, *_added()], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`conduit processors list` prints all of them"
        raise UnknownPlugin(f"there is no processor {name!r}; {hint}")
    try:
        loaded = point.load()
    except Exception as error:
        raise ConfigError(f"processor {name!r} of {point.value} cannot be loaded: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, RecordProcessor | FrameProcessor)):
        raise ConfigError(f"processor {name!r}: {point.value} is neither a RecordProcessor nor a FrameProcessor")
    return loaded


def variant(plugin: str, settings: Mapping[str, str]) -> AnyProcessor:
    """Returns the class of a plugin for these settings: `python` has one per mode."""
    cls = processor_class(plugin)
    choose = getattr(cls, "variant", None)
    return choose(settings) if choose else cls


def is_frame(processor: Processor) -> bool:
    """Returns whether the processor sees the whole micro-batch as a DataFrame."""
    return issubclass(variant(processor.plugin, processor.settings), FrameProcessor)


def build(processor: Processor) -> RecordProcessor | FrameProcessor:
    """Returns the processor with its settings. Raises ConfigError that names it and the option."""
    try:
        cls = variant(processor.plugin, processor.settings)
        built = cls(processor.settings)
        if isinstance(built, FrameProcessor):
            built.id, built.condition = processor.id, processor.condition
    except UnknownPlugin as error:
        raise UnknownPlugin(f"processor {processor.id}: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"processor {processor.id}: {error}") from error
    if isinstance(built, ManyProcessor):
        built.id, built.workers, built.section = processor.id, max(processor.workers, 1), processor.section
    return built
