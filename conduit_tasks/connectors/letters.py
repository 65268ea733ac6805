"""Destinations that can take dead letters (`dead-letter-queue: {plugin: …}`), and why the others cannot."""

from __future__ import annotations


def unfit(cls: type) -> str:
    """Returns why this destination cannot write letters, and what to do; "" if it can."""
    if getattr(cls, "in_driver", False):
        name = cls.spec.name  # type: ignore[attr-defined]
        return (
            f"{name} writes through the driver's Spark session, and letters are written where records fail, in "
            "executors and in Airflow; use file with `format: parquet`, delta or another destination, or leave "
            "`plugin` out"
        )
    return ""
