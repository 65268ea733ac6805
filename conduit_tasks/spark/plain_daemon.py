"""What Python workers of a driver on this machine are forked from: PySpark's daemon, from where PySpark is installed.

It loads nothing beforehand, as it lives for one node of one run; `daemon` is that of a server that stays.
"""

from __future__ import annotations

from conduit_tasks.spark.installed import prefer_installed


def main() -> None:
    """Does as `python -m pyspark.daemon`."""
    prefer_installed()
    from pyspark import daemon

    daemon.manager()


if __name__ == "__main__":
    main()
