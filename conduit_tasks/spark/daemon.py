"""What Python workers of our own Connect server are forked from: PySpark's daemon, with what they need already loaded.

Otherwise each worker loads Arrow and this package for itself, a second of its first job. Nothing here opens a
connection or starts a thread.
"""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "conduit_tasks.connectors.file",
    "conduit_tasks.micro_batch.deliver",
    "conduit_tasks.micro_batch.read",
    "conduit_tasks.processors.registry",
    "conduit_tasks.spark.connect",
)


def main() -> None:
    """Loads them, then does as `python -m pyspark.daemon`."""
    for name in MODULES:
        try:
            import_module(name)
        except ImportError:  # left to the worker that needs it, which then says so
            continue
    from pyspark import daemon

    daemon.manager()


if __name__ == "__main__":
    main()
