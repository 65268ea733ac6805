"""Checks of option `queue`, a name or a URL, and of how the service is reached."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors import aws


def check_queue(settings: Mapping[str, str]) -> None:
    """Checks how the service is reached, and the queue's URL if it is given by one. Raises ConfigError."""
    aws.check(settings, "sqs")
    if "://" in settings["queue"]:
        aws.check_address(settings["queue"], "sqs: option 'queue'")
