"""Writes docs/processors/: a page per processor, from its specification and docstring, with examples that were run.

`python scripts/processor_pages.py` writes; `--check` changes nothing and ends with 1 where a page is stale.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

from code_line import code_line

from conduit_tasks.cli.specs import default, meaning
from conduit_tasks.processors import registry
from conduit_tasks.processors.chain import Chain
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Processor

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "processors"

WRAPPED = {
    "payload": {"op": "u", "ts_ms": 1674061777225, "before": None, "after": {"id": 27}, "source": {"table": "t"}}
}
OPENCDC = {
    "operation": "update",
    "metadata": {"a": "1"},
    "key": "aw==",
    "payload": {"before": None, "after": {"id": 1}},
}

EXAMPLES: dict[str, list[tuple[dict[str, str], Any]]] = {
    "base64.decode": [({"field": ".Payload.After.text"}, {"text": "aGVsbG8="})],
    "base64.encode": [({"field": ".Payload.After.text"}, {"text": "hello"})],
    "clone": [({"count": "1"}, {"id": 1})],
    "custom.javascript": [
        (
            {"script": "function process(rec) { rec.Metadata.n = rec.Payload.After.n + 1; return rec; }"},
            {"n": 12},
        )
    ],
    "error": [({"message": "no carrier in {{ .Payload.After.flight }}"}, {"flight": 17})],
    "field.convert": [
        ({"field": ".Payload.After.delay", "type": "int"}, {"delay": "75"}),
        ({"field": ".Payload.After.at", "type": "time"}, {"at": 1357016400000000000}),
    ],
    "field.exclude": [({"fields": ".Payload.After.secret,.Metadata.kind"}, {"id": 1, "secret": "x"})],
    "field.rename": [({"mapping": ".Payload.After.a.b:c,.Metadata.kind:type"}, {"a": {"b": 1}})],
    "field.set": [
        (
            {"field": ".Payload.After.route", "value": "{{ .Payload.After.from }}-{{ .Payload.After.to }}"},
            {"from": "EWR", "to": "IAH"},
        )
    ],
    "filter": [({}, {"id": 1})],
    "json.decode": [({"field": ".Payload.After"}, '{"id": 1}')],
    "json.encode": [({"field": ".Payload.After.tags"}, {"tags": ["a", "b"]})],
    "mask": [({"fields": ".Payload.After.name"}, {"name": "Ada", "age": 36})],
    "schema.check": [({"schema": '{"required": ["id"]}'}, {"id": 1}), ({"schema": '{"required": ["id"]}'}, {"ID": 1})],
    "split": [({"field": ".Payload.After.legs"}, {"legs": ["EWR", "IAH"]})],
    "unwrap.debezium": [({}, WRAPPED)],
    "unwrap.kafkaconnect": [({}, {"schema": {}, "payload": {"id": 1}})],
    "unwrap.opencdc": [({}, OPENCDC)],
}
"""Processor → settings and payload after; what comes out is found by running it."""

_LINK_LOCAL = {"connectors/http/link_local.py": "addresses that `allow-link-local` allows"}
_CALLS = {
    "processors/http_calls.py": "the requests: repeated, redirected, several at once",
    **_LINK_LOCAL,
}
_MODELS = {"processors/models.py": "the key to the API, a field's text", **_CALLS}
_REGISTRY = {"processors/registry_client.py": "the registry of the schemas", **_LINK_LOCAL}
_DERIVED = {"processors/derived.py": "how many bytes one record may become"}
_VIEW = {
    "processors/view.py": "columns of the view, what is taken over",
    "micro_batch/frame_step.py": "the condition, the search for failing records",
}

CODE: dict[str, dict[str, str]] = {
    "avro.decode": {
        "processors/avro.py": "the wire format, its decoding",
        "schemas/bound.py": "data that would be too large or deep",
        "schemas/avro.py": "bytes, times and decimals as JSON",
        **_REGISTRY,
    },
    "avro.encode": {
        "processors/avro.py": "the strategies, the wire format",
        "processors/avro_infer.py": "the schema that autoRegister infers",
        **_REGISTRY,
    },
    "base64.decode": {"processors/encoding.py": "what is decoded and what fails"},
    "base64.encode": {"processors/encoding.py": "what is encoded and what fails"},
    "clone": {"processors/derive.py": "the clones and their numbers", **_DERIVED},
    "cohere.command": {"processors/cohere.py": "the question and the answer's place", **_MODELS},
    "cohere.embed": {"processors/cohere.py": "requests of several records, the embedding's form", **_MODELS},
    "cohere.rerank": {"processors/cohere.py": "which records are ranked, the result", **_MODELS},
    "custom.javascript": {
        "processors/javascript.py": "the bounds, errors, what a script returns",
        "processors/javascript_api.js": "what a script finds, its whole numbers",
    },
    "dedupe": {
        "processors/dedupe.py": "keys, records without one, `memory`",
        "processors/scripts/dedupe.lua": "who came first, time to live, full Redis",
        "processors/many.py": "blocks of records",
    },
    "enrich": {"processors/enrich.py": "reading the table, comparing keys, missing rows"},
    "error": {"processors/flow.py": "the nack and its message", "processors/chain.py": "the condition"},
    "field.convert": {"processors/convert.py": "types, times, nulls, what does not convert"},
    "field.exclude": {"processors/field.py": "which fields may go", "record/fields.py": "references to fields"},
    "field.rename": {"processors/field.py": "the mapping", "record/fields.py": "references to fields"},
    "field.set": {
        "processors/field.py": "which fields may be set",
        "record/fields.py": "references to fields, maps on the way",
        "templates/template.py": "the template of the value",
    },
    "filter": {"processors/flow.py": "the filter", "processors/chain.py": "the condition"},
    "json.decode": {"processors/encoding.py": "what is decoded", "record/jsons.py": "JSON that is read"},
    "json.encode": {"processors/encoding.py": "raw data or text", "record/jsons.py": "JSON that is written"},
    "mask": {"processors/mask.py": "hash, salt, replacement, what stays"},
    "ollama": {
        "processors/ollama.py": "the prompt, the answer it takes",
        "processors/models.py": "answers that are errors",
        **_CALLS,
    },
    "openai.embeddings": {"processors/openai.py": "the request, the embedding's place", **_MODELS},
    "openai.textgen": {"processors/openai.py": "the request's settings, the answer's place", **_MODELS},
    "python": {
        "processors/python.py": "both modes, what the function may return",
        "include.py": "import of the function",
        **_DERIVED,
        **_VIEW,
    },
    "schema.check": {
        "processors/schema_check.py": "what is drift, the error's text",
        "processors/schema_work.py": "too many ways to look through",
        "errors.py": "the error class `schema`",
    },
    "split": {"processors/derive.py": "the records of the elements, their numbers", **_DERIVED},
    "sql": {
        "processors/sql.py": "running the statement",
        "processors/sql_plan.py": "statements that are refused",
        **_VIEW,
    },
    "unwrap.debezium": {"processors/unwrap.py": "the event's operation, data, metadata and key"},
    "unwrap.kafkaconnect": {"processors/unwrap.py": "the payload, operation and key"},
    "unwrap.opencdc": {"processors/unwrap.py": "what must be there, raw data"},
    "webhook.http": {"processors/webhook.py": "the request's templates, the answer's place", **_CALLS},
}
"""Processor → the files below `conduit_tasks/` that decide what its page says, each with what it decides."""

INDEX_CODE = {
    "processors/chain.py": "conditions, none or many, nacks, outages",
    "processors/derived.py": "records made of one",
    "processors/many.py": "several records at once, in order",
    "processors/http_calls.py": "`workers`",
    "processors/registry.py": "processors by name",
    "connectors/plugins.py": "`builtin:` and `@version`",
    "cli/processors.py": "`describe` and `try`",
}


def pages() -> dict[str, str]:
    """File name → text."""
    out = {f"{name}.md": _page(name) for name in registry.BUILTIN}
    out["README.md"] = _index()
    return out


def _index() -> str:
    rows = "\n".join(
        f"| [`{name}`]({name}.md) | {summary} |"
        for name, summary in registry.known().items()
        if name in registry.BUILTIN
    )
    return f"""# Processors

Written by `python scripts/processor_pages.py`.

```yaml
processors:
  - id: late
    plugin: field.set
    settings: {{field: .Metadata.late, value: "true"}}
    condition: '{{{{ ge .Payload.After.dep_delay 60 }}}}'
```

Every record-wise processor takes a `condition`, a Go template that must print a boolean: `false` lets the record pass
untouched, anything but a boolean is an error of that record. `workers` says how many records of a processor that waits
for others (`webhook.http` and the models) may be under way; the order of records never changes. `builtin:` in front of
a name and `@version` behind it are taken, as in Conduit.

A processor makes none, one or many of a record. None: it is filtered, which acks it. Many: they share its position, and
it is acked when all of them are. An error nacks the record; an outage of what a processor depends on (Redis, a schema
registry) stops the task instead, which is tried again.

`conduit processors describe NAME` prints what these pages say, `conduit processors try NAME -s KEY=VALUE` runs one on
records from its input, `conduit records try` shows [each step](../records.md) of a record through a pipeline, and
`conduit pipelines test FILE` runs [unit tests](../pipeline-tests.md) of a whole pipeline.
One that is [your own](../../examples/plugin) may [register handlers](../handlers.md#in-code).

{code_line(INDEX_CODE, "../../")}

| name | what it does |
|---|---|
{rows}
"""


def _page(name: str) -> str:
    cls = registry.processor_class(name)
    parts = [f"# {name}", cls.spec.summary, _text(cls)]
    if cls.spec.options:
        rows = [f"| `{o.name}` | {_cell(meaning(o))} | {_default(default(o))} |" for o in cls.spec.options]
        parts.append("\n".join(["| setting | meaning | default |", "|---|---|---|", *rows]))
    else:
        parts.append("It takes no settings.")
    parts.append(code_line(CODE[name], "../../"))
    parts += [_example(name, *example) for example in EXAMPLES.get(name, [])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(cls: Any) -> str:
    """The docstring of the class, or the module's where it says so."""
    text = inspect.cleandoc(cls.__doc__ or "")
    if text.startswith("See the module") or "; see the module" in text:
        text = inspect.cleandoc(inspect.getmodule(cls).__doc__ or "")
    return text


def _default(text: str) -> str:
    return text if text in ("", "required") else f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _example(name: str, settings: dict[str, str], after: Any) -> str:
    record = {
        "operation": "create",
        "metadata": {"kind": "flight"},
        "key": None,
        "payload": {"before": None, "after": after},
    }
    chain = Chain([Processor("example", name, settings)])
    [result] = chain.run([Record.from_opencdc(record)])
    chain.close()
    if result.error is not None:
        made: Any = {"error": result.error}
    elif result.filtered:
        made = {"filtered": True}
    else:
        made = {"records": [_shown(each.to_opencdc()) for each in result.records]}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    return "\n".join(
        [
            *(["## Example", "", "```yaml", *lines, "```", ""] if lines else ["## Example", ""]),
            "```json",
            json.dumps(_shown(record), ensure_ascii=False),
            "```",
            "",
            "becomes",
            "",
            "```json",
            json.dumps(made, ensure_ascii=False),
            "```",
        ]
    )


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "position"}


def main(arguments: list[str]) -> int:
    """See the module."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if "--check" in arguments:
        for name in stale:
            print(f"docs/processors/{name} is stale: run `python scripts/processor_pages.py`", file=sys.stderr)  # noqa: T201
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
