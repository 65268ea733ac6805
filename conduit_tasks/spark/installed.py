"""PySpark from where it is installed, not from the zip that Spark puts before it on the path of its Python processes.

A zip has no compiled modules: each driver and each daemon of Python workers would compile PySpark again as it starts.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

LIBRARY = Path("pyspark", "python", "lib")
"""Where a PySpark that pip installed has the zips, below the folder that it is installed in."""


def prefer_installed() -> None:
    """Takes the zips off this process's path that belong to an installed PySpark, which has the same modules; those of
    another Spark stay. To be called before PySpark is imported."""
    own = {str(Path(entry) / LIBRARY) for entry in sys.path if (Path(entry) / LIBRARY / "pyspark.zip").exists()}
    zips = [entry for entry in sys.path if entry.endswith(".zip") and str(Path(entry).parent) in own]
    kept = [entry for entry in sys.path if entry not in zips]
    if not zips or "pyspark" in sys.modules:
        return
    before, sys.path[:] = sys.path[:], kept
    # What comes with PySpark in a zip of its own may be missing where it was installed without what it needs.
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = before
