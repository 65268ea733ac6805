"""`conduit connectors`: list and describe connectors, test whether one keeps its contract, and remove what a source
made in its system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import Format, fail, note, print_json, print_table
from conduit_tasks.cli.specs import as_dict, as_settings, print_spec, summary

app = typer.Typer(
    no_args_is_help=True, help="Which connectors are there, what do they take, and does one keep its contract?"
)

_FORMAT = typer.Option(help="text, or json for programs.")


@app.command(name="list")
def list_(format: Annotated[Format, _FORMAT] = Format.text) -> None:
    """Lists every connector: ours, those of other packages, and the standalone ones in CONDUIT_CONNECTORS."""
    from conduit_tasks.connectors import registry
    from conduit_tasks.connectors.standalone import found as standalone

    rows = []
    for name, found in registry.known().items():
        sides = [side for side in ("source", "destination") if getattr(found, side) is not None]
        rows.append((name, sides, summary(found)))
    rows += [(p.name, p.sides, p.summary) for p in standalone.listed()]
    if format is Format.json:
        print_json([{"name": name, "sides": sides, "summary": said} for name, sides, said in rows])
    else:
        print_table(("NAME", "WHAT", "SUMMARY"), [(name, " and ".join(sides), said) for name, sides, said in rows])


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting: what is in its system is shown; may be repeated."),
    ] = None,
    format: Annotated[Format, _FORMAT] = Format.text,
) -> None:
    """Prints the summary of a connector, and its options as source and as destination; with settings, what a source
    that can discover it (`singer`) finds in its system."""
    from conduit_tasks.connectors import registry
    from conduit_tasks.connectors.plugins import is_standalone
    from conduit_tasks.connectors.standalone.found import sides_of as standalone_sides
    from conduit_tasks.errors import UnknownPlugin

    if set_:
        _discover(name, as_settings(set_, "conduit connectors describe"), format)
        return
    sides = {}
    error: UnknownPlugin | None = None
    for side, find in (("source", registry.source_class), ("destination", registry.destination_class)):
        try:
            sides[side] = find(name).spec
        except UnknownPlugin as unknown:
            error = unknown
    if is_standalone(name):
        sides = {side: spec for side, spec in sides.items() if side in standalone_sides(name)}
    if not sides and error is not None:
        raise error
    if format is Format.json:
        print_json({side: as_dict(spec) for side, spec in sides.items()})
    else:
        for number, (side, spec) in enumerate(sides.items()):
            print_spec(spec, side, first=not number)


def _discover(name: str, settings: dict[str, str], format: Format) -> None:
    from conduit_tasks.connectors import registry
    from conduit_tasks.connectors.capabilities import Discovering
    from conduit_tasks.errors import ConfigError

    cls = registry.source_class(name)
    if not issubclass(cls, Discovering):
        raise ConfigError(f"{name} has nothing to discover; leave out --set")
    found = cls(settings).discover()
    if format is Format.json:
        print_json(found)
    else:
        print_table(
            [key.upper() for key in found[0]] if found else ("NOTHING",),
            [[", ".join(map(str, each)) if isinstance(each, list) else each for each in row.values()] for row in found],
        )


@app.command(name="test")
def try_(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    settings: Annotated[
        Path | None,
        typer.Option(help="YAML with the settings; maps under source, destination or settings are of that side."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of each side that knows it; may be repeated."),
    ] = None,
    source: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the source.")] = None,
    destination: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the destination.")
    ] = None,
    records: Annotated[int, typer.Option(help="How many records are written.", min=4, max=10_000)] = 100,
    wait: Annotated[float, typer.Option(help="Seconds until what was written must be readable.", min=0)] = 10.0,
    format: Annotated[Format, _FORMAT] = Format.text,
) -> None:
    """Tests whether a connector keeps its contract, on the system that the settings name.

    It writes records there and acks the records it reads: give it a system for tests. A side is left out if only the
    other has settings. Exit code 0 if no check failed, 1 if one failed, 2 if nothing was tried.
    """
    from conduit_tasks.connectors.acceptance import accept
    from conduit_tasks.errors import ConfigError

    given: dict[str, dict[str, str]] = {}
    try:
        if settings is not None:
            given = _from_file(settings)
        for side, pairs in (("settings", set_), ("source", source), ("destination", destination)):
            if pairs:
                given[side] = {**given.get(side, {}), **as_settings(pairs, "conduit connectors test")}
        report = accept(
            name,
            given.get("settings"),
            source=given.get("source"),
            destination=given.get("destination"),
            records=records,
            wait=wait,
        )
    except ConfigError as error:
        fail(str(error))
        raise typer.Exit(2) from None
    if format is Format.json:
        print_json(report.as_dict())
    else:
        signs = {True: "✓", False: "✗", None: "-"}
        print_table(
            ("", "SIDE", "CHECK", "WHY"),
            [(signs[c.passed], c.side, c.name, " ".join(c.why.split())) for c in report.checks],
        )
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def teardown(
    pipeline: Pipeline,
    source: Annotated[str, typer.Argument(metavar="CONNECTOR")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: what is removed there is gone.")] = False,
) -> None:
    """Removes the objects that a source made in its system, such as a replication slot, and tells a standalone
    connector that it is deleted; the pipeline must be stopped.

    For a pipeline or connector that is about to be deleted: it cannot go on from its position.
    """
    from conduit_tasks.operate.teardown import teardown

    if not yes:
        note(f"{source} of {pipeline} cannot go on after it; say --yes to do it")
        raise typer.Exit(1)
    done = teardown(pipeline, source)
    note(f"removed: {', '.join(done)}" if done else f"{source} of {pipeline} has nothing to remove")


def _from_file(file: Path) -> dict[str, dict[str, str]]:
    """Reads a map from `settings`, `source` and `destination` to options. Raises ConfigError."""
    import os

    from conduit_tasks.errors import ConfigError
    from conduit_tasks.pipeline.yaml import read

    try:
        documents = read(file.read_text(encoding="utf-8-sig"), str(file), os.environ)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    findings = [
        finding for document in documents for finding in document.report.findings({}) if finding.severity == "error"
    ]
    if findings:
        raise ConfigError(f"{findings[0]}; {findings[0].hint}")
    value = documents[0].value if documents else None
    if not isinstance(value, dict) or len(documents) != 1:
        raise ConfigError(f"{file}: write one map of option names and values")
    sides = {"settings", "source", "destination"}
    if not any(isinstance(value.get(side), dict) for side in sides):
        value = {"settings": value}
    for side, options in value.items():
        if (
            side not in sides
            or not isinstance(options, dict)
            or any(isinstance(v, dict | list) for v in options.values())
        ):
            raise ConfigError(
                f"{file}: '{side}' must be one of settings, source, destination: a map of names to values"
            )
    return {side: {k: str(v) for k, v in options.items() if v is not None} for side, options in value.items()}
