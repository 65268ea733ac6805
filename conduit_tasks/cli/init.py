"""`conduit init`: writes a starter project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from conduit_tasks.cli.output import note
from conduit_tasks.errors import ConfigError


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Default: here.")] = Path(),
) -> None:
    """Writes a starter project: a commented pipeline with its data, the DAG files, the schema for editors.

    Existing files are not changed; running it again writes only files that are missing.
    """
    from conduit_tasks.pipeline.json_schema import json_schema
    from conduit_tasks.stack.starter import FILES, SCHEMA

    files = {**FILES, SCHEMA: json.dumps(json_schema(), indent=2) + "\n"}
    for name, text in files.items():
        print(f"{'wrote' if _write(folder / name, text) else 'kept '} {folder / name}")
    where = "" if folder == Path() else f"cd {folder}; "
    note(f"next: {where}conduit validate, then conduit explain example")


def _write(path: Path, text: str) -> bool:
    """Writes a new file and returns whether it was written: an existing file is kept. Raises ConfigError if the file
    cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        if path.is_file():
            return False
        raise ConfigError(f"{path} cannot be written: a part of the path is no folder; choose another one") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another folder") from None
    return True
