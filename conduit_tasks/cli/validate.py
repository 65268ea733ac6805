"""`conduit validate`: checks pipeline files or folders, prints each finding, and says by its exit code if there are
errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conduit_tasks.cli.output import Format, note, print_json
from conduit_tasks.pipeline.findings import Finding


def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE|FOLDER]...", help="Default: the project's folder of pipelines."),
    ] = None,
    format: Annotated[Format, typer.Option(help="text: file:line:column: severity code message.")] = Format.text,
) -> None:
    """Checks pipeline files: the YAML, every key, plugins and their settings, filters, conditions, contradictions.

    Conditions, templates and filters are tried on the first records of sources that are files or made up.

    Exit code 0: no error (there may be warnings). 1: errors. 2: a file or folder cannot be read.
    """
    from conduit_tasks.pipeline.load import LoadResult, load_file, load_folder
    from conduit_tasks.settings import settings

    result = LoadResult()
    for path in paths or [Path(settings().path(settings().pipelines))]:
        load = load_folder if path.is_dir() else load_file
        loaded = load(path, plugins=True, records=True)
        result.pipelines += loaded.pipelines
        result.findings += loaded.findings
    if format is Format.json:
        print_json({"pipelines": [p.id for p in result.pipelines], "findings": [f.to_dict() for f in result.findings]})
    else:
        _print_text(result.findings)
        errors = len(result.errors)
        warnings = len(result.findings) - errors
        note(f"{len(result.pipelines)} pipeline(s) good, {errors} error(s), {warnings} warning(s)")
    if any(finding.code == "E001" for finding in result.findings):
        raise typer.Exit(2)
    if result.errors:
        raise typer.Exit(1)


def _print_text(findings: list[Finding]) -> None:
    for finding in findings:
        print(finding)
        if finding.hint:
            print(f"    {finding.hint}")
