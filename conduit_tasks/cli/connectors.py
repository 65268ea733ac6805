"""`conduit connectors`: which connectors are there, and what do they take?"""

from __future__ import annotations

from typing import Annotated

import typer

from conduit_tasks.cli.output import Format, print_json, print_table
from conduit_tasks.cli.specs import as_dict, print_spec

app = typer.Typer(no_args_is_help=True, help="Which connectors are there, and what do they take?")

_FORMAT = typer.Option(help="text, or json for programs.")


@app.command(name="list")
def list_(format: Annotated[Format, _FORMAT] = Format.text) -> None:
    """Every connector, ours and those that other packages added."""
    from conduit_tasks.connectors import registry

    rows = []
    for name, found in registry.known().items():
        sides = [side for side in ("source", "destination") if getattr(found, side) is not None]
        cls = found.destination or found.source
        rows.append((name, sides, cls.spec.summary if cls else f"cannot be loaded: {found.error}"))
    if format is Format.json:
        print_json([{"name": name, "sides": sides, "summary": summary} for name, sides, summary in rows])
    else:
        print_table(
            ("NAME", "WHAT", "SUMMARY"), [(name, " and ".join(sides), summary) for name, sides, summary in rows]
        )


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME")], format: Annotated[Format, _FORMAT] = Format.text
) -> None:
    """What a connector is, and its options as source and as destination."""
    from conduit_tasks.connectors import registry
    from conduit_tasks.errors import UnknownPlugin

    sides = {}
    error: UnknownPlugin | None = None
    for side, find in (("source", registry.source_class), ("destination", registry.destination_class)):
        try:
            sides[side] = find(name).spec
        except UnknownPlugin as unknown:
            error = unknown
    if not sides and error is not None:
        raise error
    if format is Format.json:
        print_json({side: as_dict(spec) for side, spec in sides.items()})
    else:
        for number, (side, spec) in enumerate(sides.items()):
            print_spec(spec, side, first=not number)
