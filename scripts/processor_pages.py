"""Writes docs/processors/: a page per processor, from its specification and docstring, with examples that were run.

`python scripts/processor_pages.py` writes; `--check` changes nothing and ends with 1 where a page is stale.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

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
