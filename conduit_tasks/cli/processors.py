"""`conduit processors`: list and describe processors, and try one on records."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from conduit_tasks.cli.output import Format, print_json, print_table
from conduit_tasks.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Which processors are there, and what do they make of a record?")

_FORMAT = typer.Option(help="text, or json for programs.")


@app.command(name="list")
def list_(format: Annotated[Format, _FORMAT] = Format.text) -> None:
    """Lists every processor, ours and those of other packages."""
    from conduit_tasks.processors import registry

    known = registry.known()
    if format is Format.json:
        print_json([{"name": name, "summary": summary} for name, summary in known.items()])
    else:
        print_table(("NAME", "SUMMARY"), list(known.items()))


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME")], format: Annotated[Format, _FORMAT] = Format.text
) -> None:
    """Prints the summary of a processor and its options."""
    from conduit_tasks.cli.specs import as_dict, print_spec
    from conduit_tasks.processors import registry

    spec = registry.processor_class(name).spec
    if format is Format.json:
        print_json(as_dict(spec))
    else:
        print_spec(spec)


@app.command(name="try")
def try_(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    setting: Annotated[
        list[str] | None, typer.Option("--setting", "-s", metavar="KEY=VALUE", help="A setting; may be repeated.")
    ] = None,
    condition: Annotated[
        str | None, typer.Option("--condition", metavar="TEMPLATE", help="The processor runs if it prints true.")
    ] = None,
    workers: Annotated[int, typer.Option(help="As in a pipeline file.", min=1)] = 1,
) -> None:
    """Reads OpenCDC records in JSON, one per line, and prints one JSON object per line.

    `{"records": […]}`, `{"filtered": true}` or `{"error": "…"}`. The position is base64; a string in key,
    payload.before or payload.after is raw data, an object structured data. No state is kept from one record to the
    next, unless the processor itself keeps some.
    """
    from conduit_tasks.cli.specs import as_settings
    from conduit_tasks.connectors.plugins import parse_plugin
    from conduit_tasks.processors import registry
    from conduit_tasks.processors.chain import Chain
    from conduit_tasks.record import jsons
    from conduit_tasks.topology import Processor

    processor = Processor(
        "try", parse_plugin(name).name, as_settings(setting or [], "conduit processors try"), condition, workers
    )
    if registry.is_frame(processor):
        raise ConfigError(f"conduit processors try: {name} sees a whole micro-batch; `conduit run` tries it")
    chain = Chain([processor])
    try:
        for answer in _answers(chain, sys.stdin.buffer):
            # Lines are answered as they come, so that the command can stand in a pipe.
            print(jsons.dumps(answer).decode(), flush=True)
    finally:
        chain.close()


def _answers(chain: Any, lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    from conduit_tasks.record import jsons
    from conduit_tasks.record.written import read

    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = read(jsons.exact(line))
        except ValueError as error:
            yield {"error": f"line {number} is no OpenCDC record: {error}"}
            continue
        [result] = chain.run([record])
        if result.error is not None:
            yield {"error": result.error}
        elif result.filtered:
            yield {"filtered": True}
        else:
            yield {"records": [each.to_opencdc() for each in result.records]}
