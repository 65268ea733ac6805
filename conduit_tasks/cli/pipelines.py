"""`conduit pipelines test`: runs the unit tests beside a pipeline file, and says which failed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conduit_tasks.cli.output import Format, fail, note, print_json
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.topology import Pipeline

app = typer.Typer(no_args_is_help=True, help="Try pipelines before they run.")


@app.callback()
def _group() -> None:
    """Makes `pipelines` a group, which may get more commands."""


@app.command(name="test")
def run_tests(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file, or its .test.yaml.")],
    tests: Annotated[Path | None, typer.Option(help="Default: FILE with .test.yaml for its ending.")] = None,
    format: Annotated[Format, typer.Option(help="text, or json for programs.")] = Format.text,
) -> None:
    """Runs the unit tests beside a pipeline file: input records, and the records expected at each destination.

    Nothing is read or sent; triggers and all processors are the real ones. Exit code 0: all passed. 1: one failed.
    2: a file cannot be read or is wrong.
    """
    from conduit_tasks.cli.pipeline_test_files import are_tests, load, pipeline_beside, tests_beside

    try:
        if are_tests(file):
            tests, file = tests or file, pipeline_beside(file)
        cases = load(tests or tests_beside(file), _pipelines(file))
        faults = [(case, case.run()) for case in cases]
    except ConduitError as error:
        fail(str(error))
        raise typer.Exit(2) from None
    failed = [case for case, wrong in faults if wrong]
    if format is Format.json:
        print_json(
            [{"pipeline": c.pipeline.id, "test": c.name, "passed": not wrong, "faults": wrong} for c, wrong in faults]
        )
    else:
        for case, wrong in faults:
            print(f"{'FAILED' if wrong else 'passed'}  {case.pipeline.id}: {case.name}")
            for line in wrong:
                print(f"    {line}")
        note(f"{len(cases) - len(failed)} passed, {len(failed)} failed")
    if failed:
        raise typer.Exit(1)


def _pipelines(file: Path) -> dict[str, Pipeline]:
    from conduit_tasks.pipeline.load import load_file

    result = load_file(file, plugins=True)
    if result.errors:
        raise ConfigError(f"{result.errors[0]}; see `conduit validate {file}`")
    if not result.pipelines:
        raise ConfigError(f"{file} holds no pipeline; see `conduit validate {file}`")
    return {pipeline.id: pipeline for pipeline in result.pipelines}
