"""Result of a chain for one record: it goes on, is filtered, or failed."""

from __future__ import annotations

from collections.abc import Sequence

from conduit_tasks.record.record import Record

NACKED = "processor"
"""Error class of records that a processor nacked."""
LONGEST = 2_000
"""Limit of the characters of an error: one that quotes a value may quote a record's whole payload."""


class Result:
    """Outcome of one record: `records` that go on (none: filtered, which acks it), or an `error`: nacked.

    `processor` is the id of the processor that failed.
    """

    __slots__ = ("records",)
    error: str | None = None
    error_class: str | None = None
    processor: str | None = None

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    @staticmethod
    def failure(error: str, error_class: str = NACKED, processor: str | None = None) -> Result:
        """Returns a nack. An error longer than `LONGEST` is cut to its beginning and end, which say why."""
        if len(error) > LONGEST:
            error = f"{error[: LONGEST // 2]} … {error[-(LONGEST // 2) :]}"
        return _Failure(error, error_class, processor)

    @property
    def filtered(self) -> bool:
        """Returns whether no record goes on although nothing failed."""
        return self.error is None and not self.records

    def __repr__(self) -> str:
        return f"Result({self.records!r}, {self.error!r}, {self.error_class!r}, {self.processor!r})"


class _Failure(Result):
    """A result with an error; a class of its own, so that the frequent results stay small."""

    __slots__ = ("error", "error_class", "processor")

    def __init__(self, error: str, error_class: str, processor: str | None) -> None:
        super().__init__(())
        self.error, self.error_class, self.processor = error, error_class, processor


FILTERED = Result(())
