"""PySpark's daemon with modules loaded beforehand: the Python workers of our own Connect server are forked from it.

Otherwise each worker loads Arrow, pandas (Arrow asks for it with its first array) and this package for itself, which
takes over a second of its first job. Nothing here opens a connection or starts a thread of Python's.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from conduit_tasks.spark.installed import prefer_installed

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "pyarrow.vendored.version",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.micro_batch.deliver",
    "conduit_tasks.micro_batch.read",
    "conduit_tasks.processors.registry",
    "conduit_tasks.spark.connect",
)


FIRST = "500"
"""`oom_score_adj` of workers: if memory runs out, Linux ends the worker that uses most of it. Then one job fails and is
retried; the end of the server would fail the jobs of all pipelines."""


def main() -> None:
    """Loads MODULES, then runs PySpark's daemon, as `python -m pyspark.daemon` does."""
    with suppress(OSError):  # not Linux, or a container that has set it higher
        Path("/proc/self/oom_score_adj").write_text(FIRST)
    prefer_installed()
    for name in MODULES:
        try:
            import_module(name)
        except ImportError:  # the worker that needs the module reports it
            continue
    from pyspark import daemon

    # A worker collects its garbage after every task. If that goes through all these modules each time, it takes 70 % of
    # a short task's time.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
