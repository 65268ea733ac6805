"""Findings of unknown and missing keys and of wrong values (E101 to E104): an error of pydantic, as its place, its
message and what to write instead."""

from __future__ import annotations

from pydantic_core import ErrorDetails

from conduit_tasks.pipeline import model
from conduit_tasks.pipeline.findings import Findings, Path, nearest
from conduit_tasks.pipeline.names import ID_LETTERS

_MODELS: dict[str, type[model.Keys]] = {
    "pipelines": model.PipelineKeys,
    "connectors": model.ConnectorKeys,
    "processors": model.ProcessorKeys,
    "dead-letter-queue": model.DeadLetterKeys,
    "trigger": model.TriggerKeys,
    "delivery": model.DeliveryKeys,
    "breaker": model.BreakerKeys,
    "micro-batch": model.MicroBatchKeys,
    "lag-budget": model.LagBudgetKeys,
    "spool": model.SpoolKeys,
    "handlers": model.HandlerKeys,
    "alerts": model.AlertKeys,
    "error-recovery": model.RecoveryKeys,
    "wake": model.WakeKeys,
    "on-delivered": model.StepKeys,
}


def report_detail(detail: ErrorDetails, report: Findings, base: Path) -> None:
    """Reports one pydantic error as a finding."""
    loc: Path = tuple(detail["loc"])
    path, kind = (*base, *loc), detail["type"]
    key = next((part for part in reversed(loc) if isinstance(part, str)), "pipeline")
    section = next((part for part in reversed(loc[:-1]) if isinstance(part, str)), "pipelines")
    if kind == "extra_forbidden":
        report.add("E101", path, f"unknown key '{key}' in {section}", _hint_for_key(str(key), section))
    elif kind == "missing":
        report.add("E102", path[:-1], f"'{key}' is missing in this item of {section}", f"add {key}: …")
    elif kind == "string_pattern_mismatch" and key == "notifier":
        report.add(
            "E212",
            path,
            f"'{detail['input']}' is not a notifier",
            "write package.module.Class, a notifier of Airflow's",
        )
    elif kind == "string_pattern_mismatch":
        report.add(
            "E104",
            path,
            f"'{detail['input']}' is not an id",
            ID_LETTERS,
        )
    elif kind == "literal_error":
        expected = detail["ctx"]["expected"]
        report.add("E103", path, f"'{detail['input']}' is no value of {key}", f"write one of {expected}")
    else:
        given = f", not '{detail['input']}'" if isinstance(detail["input"], str) and kind != "conduit" else ""
        message = detail["msg"] if kind == "conduit" else detail["msg"].removeprefix("Input ")
        report.add("E103", path, f"{key}: {message}{given}", _HINTS.get(kind, "").format(**detail.get("ctx", {})))


_HINTS = {
    "model_type": "write a map: its keys below it, indented",
    "list_type": "write a list: each item begins with '- '",
    "int_parsing": "write a whole number",
    "float_parsing": "write a number",
    "bool_parsing": "write true or false",
    "greater_than_equal": "write {ge:g} or more",
    "greater_than": "write more than {gt:g}",
    "less_than_equal": "write {le:g} or less",
}
"""Advice on values to write instead, by the kind of the error; its bound is filled in."""


def _hint_for_key(key: str, section: str) -> str:
    """Returns a hint: the nearest key of the section, or the section that the key belongs to."""
    known = _known(_MODELS.get(section, model.PipelineKeys))
    hint = nearest(key, known)
    if hint.startswith("did you mean"):
        return hint
    home = next((name for name, keys in _MODELS.items() if key in _known(keys)), None)
    return f"'{key}' belongs to {home}" if home else hint


def _known(keys: type[model.Keys]) -> set[str]:
    return {str(f.alias or name) for name, f in keys.model_fields.items()}
