"""Writes docs/pipeline-keys.md: every key of the pipeline file, from the models.

`python scripts/pipeline_reference.py` writes; `--check` changes nothing and ends with 1 where the page is stale.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from code_line import code_line
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from conduit_tasks.pipeline import values
from conduit_tasks.pipeline.json_schema import FileKeys
from conduit_tasks.pipeline.model import Keys

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pipeline-keys.md"
HEAD = """# Keys of the pipeline file

Made of the models by `scripts/pipeline_reference.py`; `conduit schema` prints the same for editors. What the keys do
together, and examples: [the pipeline file](pipeline-file.md).
"""
NAMES = {
    "FileKeys": "The file",
    "PipelineKeys": "pipelines[]",
    "ConnectorKeys": "pipelines[].connectors[]",
    "ProcessorKeys": "processors[]",
    "TriggerKeys": "trigger",
    "DeliveryKeys": "delivery",
    "BreakerKeys": "delivery.breaker",
    "DeadLetterKeys": "dead-letter-queue",
    "MicroBatchKeys": "micro-batch",
    "LagBudgetKeys": "lag-budget",
    "SpoolKeys": "spool",
    "HandlerKeys": "handlers[]",
    "RecoveryKeys": "error-recovery",
    "WakeKeys": "wake",
    "AlertKeys": "alerts[]",
    "StepKeys": "on-delivered",
}
"""Model → where its keys stand."""

CODE = {
    "FileKeys": (
        ("pipeline/load.py", "reads files, versions"),
        ("pipeline/json_schema.py", "`conduit schema`, for editors"),
    ),
    "PipelineKeys": (
        ("pipeline/clashes.py", "an id used twice"),
        ("airflow/factory.py", "`status`: a DAG that begins paused"),
        ("airflow/schedule.py", "`schedule`, `data-intervals`, `drain-limit`"),
        ("delivery/broker_port.py", "what `isolate` stops"),
        ("resend/interval.py", "reads `event-time`"),
        ("record/shown.py", "shows `mask` as `***`"),
        ("record/searchable.py", "which fields `index` may list"),
        ("micro_batch/row_index.py", "writes the `index`"),
        ("airflow/resend.py", "the DAG of `replay-interval`"),
    ),
    "ConnectorKeys": (
        ("connectors/plugins.py", "parts of `plugin`"),
        ("pipeline/values.py", "`settings` as text"),
        ("pipeline/validate.py", "keys of the other side"),
        ("micro_batch/source_ack.py", "when a source is acked"),
        ("connectors/registry.py", "default of `ack-on`"),
        ("gateway/journal.py", "journal of `durability: spool`"),
        ("pipeline/assets.py", "makes assets of settings"),
        ("airflow/alert_rules.py", "checks a `deadline`"),
    ),
    "ProcessorKeys": (
        ("processors/registry.py", "finds the plugin"),
        ("processors/chain.py", "conditions, sections"),
        ("processors/many.py", "order with several `workers`"),
    ),
    "TriggerKeys": (
        ("filters/dialects.py", "each kind of filter"),
        ("micro_batch/row_pass.py", "asks the filters about each record"),
    ),
    "DeliveryKeys": (
        ("pipes/registry.py", "defaults of a pipe"),
        ("delivery/lanes.py", "keeps `order-by`"),
        ("delivery/record_wise.py", "keeps `max-unconfirmed`"),
        ("delivery/retry.py", "`retry`, `backoff-*`, `retry-after-max`"),
        ("delivery/deadlines.py", "`timeout` of a send"),
        ("delivery/watchdog.py", "`timeout` of a bulk write"),
        ("delivery/down.py", "whether the destination is down"),
        ("delivery/attempts.py", "`on-unavailable` and `refused`"),
        ("delivery/rate.py", "keeps `rate-limit`"),
        ("delivery/at_most_once.py", "`guarantee: at-most-once`, its marks"),
        ("delivery/isolate_poison.py", "after `max-redeliveries`"),
        ("dead_letters/parking.py", "what `park-keys` holds back"),
        ("micro_batch/dividing.py", "tasks of `parallelism`"),
    ),
    "BreakerKeys": (
        ("delivery/breaker.py", "counts failures, tries one record"),
        ("broker/scripts/breakers/trip.lua", "opens it, and for how long"),
    ),
    "DeadLetterKeys": (
        ("broker/scripts/deliveries/vote.lua", "the window"),
        ("dead_letters/handler.py", "our own store, plugins, `log`"),
        ("dead_letters/processors.py", "processors of letters"),
    ),
    "MicroBatchKeys": (("micro_batch/room.py", "the limits"), ("micro_batch/asking.py", "shares of the sources")),
    "LagBudgetKeys": (
        ("micro_batch/room.py", "what the budget lets be read"),
        ("broker/backlogs.py", "what is not confirmed"),
    ),
    "SpoolKeys": (
        ("spool/store.py", "folders and addresses"),
        ("micro_batch/collection.py", "removes after `retention`"),
        ("connectors/registry.py", "an hour with `sqs`"),
    ),
    "HandlerKeys": (
        ("delivery/handlers.py", "calls, at each destination"),
        ("micro_batch/messages.py", "messages as a whole"),
        ("include.py", "finds the function"),
    ),
    "RecoveryKeys": (
        ("broker/scripts/failures/recover.lua", "delays, and the last retry"),
        ("micro_batch/recovery.py", "what counts as a failure"),
    ),
    "WakeKeys": (
        ("micro_batch/wake.py", "looks, and pauses between them"),
        ("airflow/wake.py", "the trigger in Airflow"),
    ),
    "AlertKeys": (
        ("airflow/alert_rules.py", "each rule"),
        ("airflow/alerts.py", "calls notifiers, once each"),
        ("airflow/issue_alerts.py", "tells of issues"),
    ),
    "StepKeys": (
        ("micro_batch/on_delivered.py", "for which micro-batch, in order"),
        ("airflow/on_delivered.py", "triggers a DAG, calls a function"),
        ("airflow/asset_steps.py", "events of an asset"),
    ),
}
"""Model → files that do what its keys say, below the package, and what of it."""

KINDS: list[tuple[Any, str]] = [
    (values.Duration, "duration (`10s`, `1h30m`)"),
    (values.Size, "size (`256MiB`)"),
    (values.Rate, "rate (`100/s`)"),
    (values.Tasks, "number, `auto`"),
    (values.Settings, "map"),
    (values.Id, "id"),
    (values.Count, "number ≥ 0"),
    (values.Positive, "number > 0"),
]
PLAIN = {str: "text", bool: "`true`, `false`", int: "number", float: "number", Any: "anything"}


def page() -> str:
    """All models, the outermost first, each where it is met."""
    out = [HEAD]
    waiting: list[type[Keys]] = [FileKeys]
    met = set(waiting)
    while waiting:
        keys = waiting.pop(0)
        out.append(section(keys))
        for info in keys.model_fields.values():
            for inner in _models(info.annotation):
                if inner not in met:
                    met.add(inner)
                    waiting.append(inner)
    return "\n".join(out)


def section(keys: type[Keys]) -> str:
    """The table of one model."""
    lines = [f"## {NAMES[keys.__name__]}", "", _cell(keys.__doc__ or ""), "", "| key | type | default | meaning |"]
    lines.append("|---|---|---|---|")
    hints = get_type_hints(keys, include_extras=True)
    for name, info in keys.model_fields.items():
        inner = _models(hints[name])
        meaning = _cell(info.description or (inner[0].__doc__ if inner else "") or "")
        lines.append(f"| `{info.alias or name}` | {_named(hints[name])} | {_default(info, hints[name])} | {meaning} |")
    return "\n".join([*lines, "", code_line(dict(CODE[keys.__name__]))]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _named(kind: Any) -> str:
    for known, name in KINDS:
        if kind == known:
            return name
    if get_origin(kind) is Annotated:
        return _named(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, Keys):
        where = NAMES[kind.__name__]
        return f"[{where}](#{where.lower().replace(' ', '-').replace('[]', '').replace('.', '')})"
    return _composed(get_origin(kind), get_args(kind)) or PLAIN.get(kind, "map")


def _composed(origin: Any, of: tuple[Any, ...]) -> str:
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in of)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(each) for each in of if each is not type(None))
    return f"list of {_named(of[0])}" if origin is list else ""


def _models(kind: Any) -> list[type[Keys]]:
    if isinstance(kind, type) and issubclass(kind, Keys):
        return [kind]
    return [found for each in get_args(kind) for found in _models(each)]


def _default(info: FieldInfo, kind: Any) -> str:
    if info.is_required():
        return "required"
    value = info.default if info.default is not PydanticUndefined else None
    if value is None or value == "" or isinstance(value, BaseModel):
        return ""
    if isinstance(value, float):
        return f"`{value:g}s`" if kind == values.Duration else f"`{value:g}`"
    return f"`{str(value).lower()}`"


def main() -> int:
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made)
        return 0
    if PAGE.exists() and PAGE.read_text() == made:
        return 0
    sys.stderr.write(f"{PAGE.name} is stale: run `python scripts/pipeline_reference.py`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
