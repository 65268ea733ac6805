"""`conduit positions PIPELINE`: shows the positions of its sources, or sets them while it is stopped."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import Format, note, print_json, print_table
from conduit_tasks.errors import ConfigError


def positions(
    pipeline: Pipeline,
    *,
    source: Annotated[str | None, typer.Option(help="The source whose position is set.")] = None,
    place: Annotated[
        list[str] | None, typer.Option("--set", help="PART=TOKEN, the token as it is shown; repeat it.")
    ] = None,
    forget: Annotated[list[str] | None, typer.Option(help="A part that begins as a new one does; repeat it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")] = False,
    format: Annotated[Format, typer.Option(help="text or json")] = Format.text,
) -> None:
    """Show the positions of the sources, or set those of one while the pipeline is stopped and nothing is in flight.

    Records after the new position are read and delivered again, with the same ids; skipped records are never read.
    """
    from conduit_tasks.operate import positions as module

    if not (place or forget):
        found = module.positions(pipeline)
        if format is Format.json:
            print_json(found)
            return
        rows = [
            (s["id"], part, _text(s["planned"].get(part)), _text(s["acked"].get(part)))
            for s in found
            for part in sorted({**s["planned"], **s["acked"]}) or [""]
        ]
        print_table(("source", "part", "planned", "acked"), rows)
        return
    if source is None:
        raise ConfigError("--set and --forget need --source")
    tokens = dict(_pair(text) for text in place or ())
    before, after = module.place(pipeline, source, tokens, forget or (), dry_run=dry_run)
    changed = [part for part in {**before, **after} if before.get(part) != after.get(part)]
    if format is Format.json:
        print_json({"source": source, "before": before, "after": after})
    else:
        changes = [(part, _text(before.get(part)), _text(after.get(part))) for part in changed]
        print_table(("part", "before", "after"), changes)
    if changed and not dry_run:
        back = [f"--set {shlex.quote(f'{p}={_text(before[p])}')}" for p in changed if p in before]
        back += [f"--forget {shlex.quote(p)}" for p in changed if p not in before]
        note(f"back: conduit positions {pipeline} --source {source} {' '.join(back)}")


def _pair(text: str) -> tuple[str, Any]:
    """Splits PART=TOKEN. Both may hold `=`: the first `=` that is followed by JSON divides them, else the last one."""
    if "=" not in text:
        raise ConfigError(f"--set takes PART=TOKEN, not '{text}'")
    for at in (at for at, letter in enumerate(text) if letter == "="):
        try:
            return text[:at], json.loads(text[at + 1 :])
        except ValueError:
            continue
    part, _, token = text.rpartition("=")
    return part, token


def _text(token: Any) -> str:
    return "-" if token is None else json.dumps(token)
