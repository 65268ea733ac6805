import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.schedule import parse_schedule


@pytest.mark.parametrize(
    ("text", "kind", "seconds", "cron"),
    [
        ("30s", "interval", 30, None),
        ("1h30m", "interval", 5400, None),
        ("*/5 * * * *", "cron", 300, "*/5 * * * *"),
        ("@hourly", "cron", 3600, "0 * * * *"),
        ("@continuous", "continuous", 60, None),
    ],
)
def test_a_schedule_is_cron_an_interval_or_continuous(text: str, kind: str, seconds: float, cron: str | None) -> None:
    schedule = parse_schedule(text)
    assert (schedule.kind, schedule.seconds, schedule.cron) == (kind, seconds, cron)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sometimes", "is not a schedule; write cron"),
        ("@often", "known are @continuous, @hourly"),
        ("* * *", "must have five fields"),
        ("99 * * * *", "cannot be read"),
        ("200ms", "below a second"),
        ("30", "is not a schedule"),
    ],
)
def test_another_schedule_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_schedule(text)
