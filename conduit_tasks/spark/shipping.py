"""Shipping of the user's own Python to executors on other machines: every `*.py` below `include`, as one zip."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

FOLDER = "include"
NAME = "conduit_include.zip"
_STAMP = (1980, 1, 1, 0, 0, 0)
"""Time of every entry, so that the same code gives the same file."""


def ship(context: SparkContext, home: Path) -> bool:
    """Ships `include` so that executors can import it as the driver does; local executors can already.

    Returns whether anything was shipped. Data files are not shipped: they are on storage that every machine sees.
    """
    if str(context.master).startswith("local"):
        return False
    folder = Path(tempfile.mkdtemp(prefix="conduit-include-"))
    # Spark copies it into the executors' folders as they ask for it, for as long as the driver lives.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = zipped(home, folder / NAME)
    if archive is None:
        return False
    context.addPyFile(str(archive))
    return True


def zipped(home: Path, target: Path) -> Path | None:
    """Writes the zip and returns its path; None if there is no Python below `include`."""
    files = sorted(path for path in (home / FOLDER).rglob("*.py") if path.is_file())
    if not files:
        return None
    folders = {parent for path in files for parent in path.relative_to(home).parents if parent.name}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        # Without entries of their own, folders without __init__.py are no packages in a zip.
        for folder in sorted(folders):
            archive.writestr(zipfile.ZipInfo(f"{folder.as_posix()}/", _STAMP), b"")
        for path in files:
            archive.writestr(zipfile.ZipInfo(path.relative_to(home).as_posix(), _STAMP), path.read_bytes())
    return target
