"""Import of the installed PySpark, not of the zip that Spark puts before it on the path of its Python processes.

A zip has no compiled modules: each driver and each daemon of Python workers would compile PySpark again as it starts.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

LIBRARY = Path("pyspark", "python", "lib")
"""Folder of the zips in a PySpark that pip installed, below the folder that it is installed in."""


def prefer_installed() -> None:
    """Removes from this process's path the zips of an installed PySpark, which has the same modules; zips of another
    Spark stay. To be called before PySpark is imported."""
    own = {str(Path(entry) / LIBRARY) for entry in sys.path if (Path(entry) / LIBRARY / "pyspark.zip").exists()}
    zips = [entry for entry in sys.path if entry.endswith(".zip") and str(Path(entry).parent) in own]
    kept = [entry for entry in sys.path if entry not in zips]
    if not zips or "pyspark" in sys.modules:
        return
    before, sys.path[:] = sys.path[:], kept
    # Py4J has a zip of its own; if PySpark was installed without its dependencies, only that zip has it.
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = before
