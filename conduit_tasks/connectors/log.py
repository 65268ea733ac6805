"""A destination that writes each record to the log, as OpenCDC JSON."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused

LOGGER = "conduit.records"


class LogDestination(BatchDestination):
    """Writes records to the logger `conduit.records`: they are as durable as the place that the log is sent to."""

    spec = Spec(
        "log",
        "Writes each record to the log.",
        (
            Option("level", "trace, debug, info, warn or error, in any case", default="info"),
            Option("message", "in front of the record", default="record"),
        ),
    )
    chunk = 1_000

    _LEVELS = {  # noqa: RUF012  the class's own constant
        "trace": logging.DEBUG,
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warn": logging.WARNING,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        level = self.settings["level"].lower()
        if level not in self._LEVELS:
            raise ConfigError(f"log: option 'level' cannot be '{level}'; it is one of {', '.join(self._LEVELS)}")
        self.level = self._LEVELS[level]

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Raises Refused if a structured payload is not JSON."""
        from conduit_tasks.record import jsons

        try:
            records = rows.records()
        except jsons.JSONDecodeError as e:
            raise Refused(f"a structured payload is not JSON: {e}") from e
        logger = logging.getLogger(LOGGER)
        for record in records:
            text = jsons.dumps(record.to_opencdc()).decode()
            logger.log(self.level, "%s %s", self.settings["message"], text)
        return None


DESTINATION = LogDestination
