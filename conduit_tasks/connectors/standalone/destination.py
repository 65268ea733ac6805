"""A standalone connector as a destination: batches over one stream, an outcome per record (SEMANTICS C17, T6).

A message is answered whole before the next one goes, so nothing overtakes a record that failed. Of the answers up to
the first error all count: records that were written are not sent again. What follows an error in its message counts
only if it was written: the SDK gives the rest of a batch the error of the record at which its write ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.standalone import settled
from conduit_tasks.connectors.standalone.client import Client, configured
from conduit_tasks.connectors.standalone.connector import Standalone
from conduit_tasks.connectors.standalone.convert import encoded, sized
from conduit_tasks.connectors.standalone.stream import SIDE, Stream
from conduit_tasks.errors import ConfigError, RecordError, Refused, SpoolError, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, MESSAGE = 10_000, 1_000
"""Rows of one write, and of one message, unless `sdk.batch.size` says more."""
BYTES = 8 << 20
"""Bytes of one message, unless a single record has more."""
ROOM = 16
"""Bytes that a record needs in a message beside its own, at most."""
SLOW_START, GROWTH = 1, 8
"""Rows of the first message after an error, and the factor by which the next ones grow."""
SPARE = 0.9
"""Share of the time for a write within which it is given up, before the process is ended."""
QUIET = 1.0
"""Seconds beyond `sdk.batch.delay` after which a connector that collects batches is asked to write what it has."""


Row = tuple[str, int]
"""A row, at each attempt to write it: its record's id, which a row that changed at its source has again (`singer`), and
its number."""


class _Names(Sequence[Row]):
    """The rows' names, made when they are asked for: a hash for each record is a tenth of a write, and most writes need
    none."""

    def __init__(self, records: Sequence[Record], batch: pa.RecordBatch) -> None:
        self._records, self._numbers = records, batch.column("n")

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, n: Any) -> Any:
        return self._records[n].id, self._numbers[n].as_py()


class _Again(Unavailable):
    """A record failed, and is sent again; the connector is well."""


class StandaloneDestination(Standalone, BatchDestination):
    """State: {"config": what the connector was told of its settings, "of": its name}."""

    side: ClassVar[str] = "destination"
    forks = False

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        size, delay = (self._effective(name) for name in ("sdk.batch.size", "sdk.batch.delay"))
        self._batch = int(size) if size.isdigit() else 0
        self._delay = options.duration({"sdk.batch.delay": delay}, "sdk.batch.delay") if delay not in ("", "0") else 0.0
        self.chunk = max(ROWS, self._batch)  # type: ignore[misc]  # a setting here, a class's constant elsewhere
        self._most = self._batch or MESSAGE
        self._size = self._most
        self._stream: Stream | None = None
        self._kept: settled.Kept | None = None
        self._written: set[Row] = set()
        """Rows that were written by a write that failed."""
        self._errors: dict[Row, tuple[int, str]] = {}
        """Rows that were refused: how often, and why."""

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    @classmethod
    def several_if(cls, settings: Mapping[str, str]) -> str:
        return (
            "Conduit runs a connector as one process; with several, what it writes to must take several writers that "
            "have one id (a database, a queue or a service does, a file or an exclusive session does not)"
        )

    def _effective(self, name: str) -> str:
        parameter = self.parameters().get(name)
        return self.config.get(name) or (parameter.default if parameter is not None else "")

    def open(self, state: dict[str, Any] | None) -> None:
        """Opens the connector, if it is not open. Raises Unavailable, ConfigError."""
        if self._stream is not None:
            return
        program = self.program()
        client = Client(program.file, self.spec.name, self.id, settled.hiding_of(self.config))
        try:
            configured(client, SIDE, self.config)
            # What another connector was told, before the file named this one, this one was not.
            before = (state or {}).get("config") if (state or {}).get("of", self.own_name) == self.own_name else None
            if not self.for_letters:
                self._kept = settled.tell(client, SIDE, before, self.config, self.told, self.own_name)
            client.call(SIDE, "Open")
            self._stream = Stream(client)
        except NotImplementedError as error:
            client.kill()
            raise ConfigError(f"{self.spec.name}: it has no destination ({error} is not implemented)") from None
        except SpoolError as error:
            client.kill()
            raise Unavailable(f"{self.spec.name}: {error}") from None
        except BaseException:
            client.kill()
            raise

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Writes the rows. Raises Refused, naming the first row that the connector refused, and Unavailable."""
        assert self._stream is not None
        give_up = time.monotonic() + SPARE * self.limit
        records = rows.records()
        names = _Names(records, rows.batch)
        alone = len(records) == 1 or rows.first == rows.last
        todo = list(range(len(records)))
        if self._errors and alone:
            self._refused_before(names)
        if self._written:
            todo = [n for n in todo if names[n] not in self._written]
        try:
            self._send(records, names, todo, alone, give_up)
        except (Refused, _Again):
            raise
        except BaseException:
            self._close(at_once=True)
            raise
        if self._written:
            self._written.difference_update(names)
        if self._errors:
            for name in names:
                self._errors.pop(name, None)
        return None if self.shard is not None else {"config": self._kept, "of": self.own_name}

    def _refused_before(self, names: Sequence[Row]) -> None:
        for n, name in enumerate(names):
            times, why = self._errors.get(name, (0, ""))
            if times >= self.attempts:
                raise Refused(why, row=n)

    def _send(
        self, records: Sequence[Record], names: Sequence[Row], todo: Sequence[int], alone: bool, give_up: float
    ) -> None:
        at = 0
        request: list[bytes] = []
        while at < len(todo):
            request = request or self._request(records, names, todo, at)
            sent = todo[at : at + len(request)]
            last = at + len(request) >= len(todo)
            larger = min(self._most, self._size * GROWTH)
            assert self._stream is not None
            try:
                self._stream.send(sized(request), [records[n].position for n in sent])
                # The next one is made while the connector works on this one.
                request, _ = _message(records, todo[at + len(request) :], larger)
                errors = self._stream.answers(self._flush_after() if last else None, give_up)
            except Unavailable:
                self._keep(names, [*todo[:at], *(sent[n] for n in self._stream.written)])
                raise
            if self._stream.over:
                self._close(at_once=False)
                if not last or errors:
                    self._open_again()
            at += len(sent)
            if errors:
                self._size = SLOW_START
                self._fail(names, todo[:at], sent, errors, alone)
            self._size = larger

    def _open_again(self) -> None:
        self.open({"config": self._kept, "of": self.own_name})

    def _flush_after(self) -> float | None:
        """Returns the seconds after which the connector is asked to write what it has collected; None if it collects
        nothing."""
        return self._delay + QUIET if self._batch > 1 or self._delay else None

    def _request(self, records: Sequence[Record], names: Sequence[Row], todo: Sequence[int], at: int) -> list[bytes]:
        """Returns rows for one message, from `at` on. Raises Refused for a row that no message can hold; rows before it
        are a message of their own."""
        taken, error = _message(records, todo[at:], self._size)
        if taken:
            return taken
        n, said = todo[at], f"{self.spec.name}: {error}"
        self._keep(names, todo[:at])
        self._errors[names[n]] = (self.attempts, said)
        raise Refused(said, row=n) from None

    def _keep(self, names: Sequence[Row], rows: Sequence[int]) -> None:
        self._written.update(names[n] for n in rows)

    def _fail(
        self,
        names: Sequence[Row],
        sent: Sequence[int],
        last: Sequence[int],
        errors: Mapping[int, str],
        alone: bool,
    ) -> None:
        """Ends a write after a message with errors. Raises Refused, or Unavailable if the record is to be sent again.
        `sent`: all rows that were sent; `last`: those of the message; `errors`: by number in it."""
        failed = {last[n] for n in errors}
        self._keep(names, [n for n in sent if n not in failed])
        first = min(failed)
        times = self._errors.get(names[first], (0, ""))[0] + 1
        said = f"{self.spec.name}: {clip(errors[last.index(first)])}"
        self._errors[names[first]] = (times, said)
        if alone and times < self.attempts:
            raise _Again(said)
        raise Refused(said, row=first)

    def close(self) -> None:
        self._close(at_once=False)

    def _close(self, *, at_once: bool) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(at_once=at_once)


def _message(records: Sequence[Record], rows: Sequence[int], most: int) -> tuple[list[bytes], RecordError | None]:
    """Returns the first rows, encoded: `most` at most, and no more bytes than one message has; and why the row behind
    them is not among them, if no message can hold it."""
    taken: list[bytes] = []
    used, limit = 0, installation().connectors_message
    for n in islice(rows, most):
        try:
            record = encoded(records[n])
        except RecordError as error:
            return taken, error
        if len(record) + ROOM > limit:
            return taken, RecordError(
                f"it has {len(record)} bytes, more than a message to a connector may have ({limit}, "
                "CONDUIT_CONNECTORS_MESSAGE)"
            )
        if taken and used + len(record) + ROOM > min(BYTES, limit):
            break
        used += len(record) + ROOM
        taken.append(record)
    return taken, None
