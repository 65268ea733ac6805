"""`conduit records try` and `peek`: what a pipeline makes of a record, step by step, and the last records of a
stage."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import Format, cell, fail, note, print_json, print_table
from conduit_tasks.cli.side_by_side import side_by_side
from conduit_tasks.cli.ways import history
from conduit_tasks.errors import ConduitError, ConfigError

app = typer.Typer(no_args_is_help=True, help="See what becomes of records: try one, look at the last ones, find one.")

app.command()(history)

_INDENT = "    "


@app.callback()
def _group() -> None:
    """Makes `records` a group."""


@app.command(name="try")
def try_(  # noqa: PLR0917 - its options
    pipeline: Pipeline,
    record: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="An OpenCDC record; - reads it from stdin.")
    ] = None,
    letter: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Or the dead letter with this id, of `dead-letters list`."),
    ] = None,
    place: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Or the record in this place of the spool, as `peek` prints it.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A changed pipeline file, in place of the one in force.")] = None,
    node: Annotated[
        str, typer.Option(help="Where it enters: sources.ID, processors, destinations.ID. Default: as the record says.")
    ] = "",
    calls: Annotated[
        bool, typer.Option("--calls", help="Also processors that make calls over the network; else they are left out.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, max=3_600, help="Seconds that it may take.")] = 60.0,
    format: Annotated[Format, typer.Option(help="text, or json for programs.")] = Format.text,
) -> None:
    """Shows what the processors and triggers of PIPELINE make of one record: before and after each step.

    Nothing is read or sent. It runs in a process of its own, which is ended after the timeout. Exit code 0: no step
    failed. 1: one failed. 2: the file, the record or an option is wrong.
    """
    from conduit_tasks.operate.apart import tried
    from conduit_tasks.operate.ask import Ask

    try:
        if [record, letter, place].count(None) != 2:
            raise ConfigError("give exactly one of --record, --letter and --place")
        answer = tried(
            Ask(
                pipeline,
                record=None if record is None else _read(record),
                letter=None if letter is None else [letter],
                place=place,
                node=node,
                text=None if file is None else _text(file, "--file"),
                file=str(file),
                own=True,
                calls=calls,
                frames=True,
            ),
            timeout,
        )
    except ConduitError as error:
        fail(str(error))
        raise typer.Exit(2) from None
    if format is Format.json:
        print_json(answer)
    else:
        _print(answer)
    if answer["error"]:
        if format is Format.text:
            fail(answer["error"])
        raise typer.Exit(2)
    if any(step["outcome"] == "failed" for step in answer["steps"]):
        raise typer.Exit(1)


@app.command()
def peek(
    pipeline: Pipeline,
    node: Annotated[
        str,
        typer.Option(
            help="sources.ID: as read, after its own processors; processors: the sealed micro-batch; destinations.ID: "
            "what its trigger wants, with the answer; processors/ID, destinations.ID/ID: before and after a processor."
        ),
    ] = "processors",
    last: Annotated[int, typer.Option(min=1, max=100, help="So many records at most.")] = 20,
    format: Annotated[Format, typer.Option(help="text, or json for programs.")] = Format.text,
) -> None:
    """Shows the last records of a stage of PIPELINE, the newest first, from the newest files of its spool.

    Fields that are named secret, or listed under `mask` of the pipeline file, are shown as ***.
    """
    from conduit_tasks.operate.apart import peeked
    from conduit_tasks.operate.peek import MICRO_BATCHES
    from conduit_tasks.pipeline.load import get_pipeline

    found = peeked(get_pipeline(pipeline), node, last)
    if format is Format.json:
        print_json(found)
        return
    if "/" in node:
        _print_steps(found["records"], node.partition("/")[2])
    else:
        print_table(
            ("place", "state", "record", "error"),
            [(each["place"], each["state"], _whole(each), _said(each)) for each in found["records"]],
        )
    if not found["records"]:
        note(f"none at {node} in the newest {MICRO_BATCHES} micro-batches that the spool has")
    if found["cut"]:
        note("long texts and lists are cut")


def _print_steps(records: list[dict[str, Any]], processor: str) -> None:
    """Prints what a processor made of each record, before and after it side by side."""
    for each in records:
        found = [step for step in each["steps"] or () if step["processor"] == processor]
        print(f"{cell(each['place'])}: {', '.join(step['outcome'] for step in found) or 'not found in time'}")
        for step in found:
            for line in _lines(step):
                print(f"{_INDENT}{line}")


def _whole(each: dict[str, Any]) -> str:
    """Returns a record in a line; if it is known, as it is sent."""
    sent = each["sent"]
    return "; ".join(map(_line, sent["records"])) if sent and sent["records"] else _line(each["record"])


def _line(record: dict[str, Any]) -> str:
    """Returns a record in a line: what it has."""
    parts = {
        "operation": record["operation"],
        "metadata": record["metadata"],
        "key": record["key"],
        **record["payload"],
    }
    return json.dumps({name: value for name, value in parts.items() if value not in (None, {})}, ensure_ascii=False)


def _said(each: dict[str, Any]) -> str:
    if each["error"]:
        return f"{each['error']['node']}: {each['error']['message']}"
    return str((each["answer"] or {}).get("error") or "")


def _read(given: str) -> str:
    if given == "-":
        return _decoded(sys.stdin.buffer.read(), "stdin")
    return _text(Path(given[1:]), "--record") if given.startswith("@") else given


def _text(path: Path, option: str) -> str:
    try:
        return _decoded(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), str(path))
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is no text in UTF-8: {error.reason} at byte {error.start}") from None


def _print(answer: dict[str, Any]) -> None:
    for step in answer["steps"]:
        named = f"{step['node']}: {step['processor']} ({step['plugin']})" if "processor" in step else step["node"]
        print(f"{cell(named)}{': trigger' if step['step'] == 'trigger' else ''}: {step['outcome']}")
        for line in _lines(step):
            print(f"{_INDENT}{line}")
    if answer["cut"]:
        note("long texts and lists are cut")


def _lines(step: dict[str, Any]) -> list[str]:
    if step["outcome"] == "failed":
        return _failure(step)
    if step["step"] == "trigger":
        return [_filter(each) for each in step["filters"]]
    if step["outcome"] == "left out":
        return [f"It {step['why']}"]
    if step["outcome"] in ("changed", "sent"):
        width = shutil.get_terminal_size((120, 24)).columns - len(_INDENT)
        if step["step"] == "sent":
            return [cell(line) for line in _json(step["after"])]
        return list(side_by_side(_json(step["before"]), _json(step["after"]), width))
    return []


def _failure(step: dict[str, Any]) -> list[str]:
    out = [f"{step['error_class']}: {cell(step['error'])}"]
    fault, place = step["fault"], step["place"]
    if place:
        out.append(f"line {place['line']}, column {place['column']} of the file{', ' + fault['key'] if fault else ''}:")
    if fault:
        lines = fault["expression"].splitlines() or [""]
        at = (fault["line"] or 1) - 1
        shown = lines[at] if at < len(lines) else lines[0]
        begin = (fault["column"] or len(shown) - len(shown.lstrip()) + 1) - 1
        out += [cell(shown), " " * begin + ("^" if fault["column"] else "^" * max(1, len(shown.strip())))]
    return out


def _filter(each: dict[str, Any]) -> str:
    seen = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in each["attributes"].items())
    said = each["error"] or ("matches" if each["matches"] else "does not match")
    return cell(f"{json.dumps(each['filter'], ensure_ascii=False)} {said}; the record has {seen or 'no attribute'}")


def _json(records: list[dict[str, Any]]) -> list[str]:
    return [line for each in records for line in json.dumps(each, indent=2, ensure_ascii=False).splitlines()]
