import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.units import format_duration, format_size, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("10s", 10),
        ("5m", 300),
        ("6h", 21_600),
        ("1d", 86_400),
        ("2w", 1_209_600),
        ("1h30m", 5_400),
        ("1m0.5s", 60.5),
        ("1.5h", 5_400),
        ("250µs", 0.00025),
        ("PT0.2S", 0.2),
        ("P1DT2H", 93_600),
        ("pt1m", 60),
        ("P2W", 1_209_600),
        ("0", 0),
    ],
)
def test_durations_are_read_in_gos_and_isos_spelling(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["10", "", "s", "-1s", "1y", "P1M", "P1Y", "P", "PT", "10 seconds", "1s!", "1e3s"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration; write for example 200ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MiB", 256 * 1024**2), ("10MB", 10**7), ("512", 512), ("1.5KiB", 1536), ("2Gi", 2 * 1024**3), ("7k", 7000)],
)
def test_sizes_are_read_in_thousands_and_in_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "10 parsecs", "0.3B", "1.0001KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a (size|whole number)"):
        parse_size(text)


@pytest.mark.parametrize(("text", "rate"), [("100", 100), ("2.5/s", 2.5), ("6000/m", 100), ("36/h", 0.01)])
def test_rates_are_records_per_second(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["0", "-1", "fast", "10/d"])
def test_a_rate_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rate"):
        parse_rate(text)


@given(st.integers(min_value=0, max_value=10**7))
def test_a_printed_duration_reads_as_itself(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-4)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_reads_as_itself(size: int) -> None:
    assert parse_size(format_size(size)) == size
