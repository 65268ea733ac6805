"""The installed PySpark's daemon: the Python workers of a driver on this machine are forked from it.

It loads nothing beforehand, as it lives for one node of one run; `daemon` is the one for a server that stays.
"""

from __future__ import annotations

from conduit_tasks.spark.installed import prefer_installed


def main() -> None:
    """Runs PySpark's daemon, as `python -m pyspark.daemon` does."""
    prefer_installed()
    from pyspark import daemon

    daemon.manager()


if __name__ == "__main__":
    main()
