"""Schedules of a pipeline, from the file's `schedule` and `replay-interval`: cron, an interval, or `@continuous`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.units import parse_duration

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


NOBODY_KNOWS = 3_600.0
"""Seconds taken for the time between two runs that somebody else starts."""
IDLE = 2_400.0
"""Seconds that a run under `@continuous` lasts at most if nothing comes and it goes on past its limit, as a hand-over
starts a process per node, and each task of a run leaves a log. Well below an hour, after which tokens of connections
that a node was given at its start are often no longer good."""


@dataclass(frozen=True)
class Schedule:
    """A parsed schedule. `seconds`: length of one interval (of a cron: between its next two fires); `cron`: the cron
    expression, presets resolved."""

    kind: Literal["interval", "cron", "continuous", "none"]
    seconds: float
    cron: str | None = None


def is_continuous(pipeline: Pipeline) -> bool:
    """Returns whether the pipeline is scheduled `@continuous`: its runs follow each other without a pause."""
    return parse_schedule(pipeline.schedule).kind == "continuous"


def parse_schedule(text: str) -> Schedule:
    """Reads `*/5 * * * *`, `@hourly`, `30s`, `@continuous` or `none`. Raises ConfigError naming what is wrong.

    `seconds` of `@continuous` is 60: by then another run is under way (docs/architecture.md, "One run").
    """
    text = text.strip()
    if text == "none":
        return Schedule("none", NOBODY_KNOWS)
    if text == "@continuous":
        return Schedule("continuous", 60.0)
    if text.startswith("@") and text not in PRESETS:
        raise ConfigError(f"'{text}' is not a schedule; known are @continuous, {', '.join(PRESETS)}")
    if text in PRESETS or " " in text:
        return _cron(PRESETS.get(text, text))
    try:
        seconds = parse_duration(text)
    except ConfigError:
        raise ConfigError(
            f"'{text}' is not a schedule; write cron such as '*/5 * * * *', an interval such as 30s, @continuous, none"
        ) from None
    if seconds < 1:
        raise ConfigError(f"an interval of {text} is below a second; write @continuous to run without a pause")
    return Schedule("interval", seconds)


def _cron(text: str) -> Schedule:
    from datetime import UTC, datetime

    from croniter import CroniterError, croniter

    if len(text.split()) != 5:
        raise ConfigError(
            f"the cron '{text}' must have five fields (minute hour day month weekday), it has {len(text.split())}"
        )
    try:
        fires = croniter(text, datetime.now(UTC), ret_type=float)
        first, second = fires.get_next(), fires.get_next()
    except (CroniterError, ValueError) as error:
        raise ConfigError(f"the cron '{text}' cannot be read: {error}") from None
    return Schedule("cron", second - first, text)
