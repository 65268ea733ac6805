"""`singer`: runs any Singer tap, and reads what it prints.

A tap is asked for everything behind a STATE, and says by further STATEs where it would go on. Only reading finds out
where that is, so slices are open (docs/adr/0007-open-slices.md); how the rest of the contract is kept:
docs/adr/0030-singer-taps.md.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Discovering
from conduit_tasks.connectors.hiding import hiding
from conduit_tasks.connectors.singer import messages
from conduit_tasks.connectors.singer.catalog import chosen, listed
from conduit_tasks.connectors.singer.process import Tap, environment
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record import jsons
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.singer.schema import Registered
    from conduit_tasks.record.record import Record

log = logging.getLogger(__name__)

STATE_BYTES = 256 << 10
"""Bytes of a STATE at most: Redis keeps it."""
CUTS = 100
"""STATEs at which a tap was cut that are remembered."""
NOT_RESUMED = frozenset({"progress_markers", "currently_syncing"})
"""Keys of a STATE that say how far a stream is, or which one it is, and from which no stream goes on."""
BATCH, BATCH_BYTES = 5_000, 8 << 20
"""Records and bytes of a batch at most."""
DELETED = "_sdc_deleted_at"
"""Property by which taps of databases say that a row is deleted."""
SECRET = re.compile("pass|secret|token|key|credential|auth|private|url|uri|dsn|connection", re.IGNORECASE)
"""Names of keys of a config whose values are hidden in the tap's log, beside all of `config.*` and `env.*`."""


class SingerSource(Discovering):
    """Token: {"state": the last STATE, "ended": seconds since the epoch at which the tap last came to its end,
    "failed": why, if it failed there, "cut": STATEs (hashed) up to which it was read since then}. A record's position:
    its stream and the values of its key properties, or, without those, the STATE that the tap was started with and the
    record's number behind it.
    """

    spec = Spec(
        "singer",
        "Runs a Singer tap and reads its records.",
        (
            Option("command", "the tap, with what else it takes, such as /opt/taps/bin/tap-csv", required=True),
            Option("config", "its config: a JSON file, or the JSON itself; relative to the home folder", secret=True),
            Option("config.*", "a key of its config: JSON, or else text", secret=True),
            Option(
                "catalog", "its catalog, a JSON file or the JSON itself; default: what it discovers, if select is set"
            ),
            Option(
                "select",
                "streams to read, comma-separated; !STREAM.FIELD leaves a field out; default: as the catalog says",
            ),
            Option(
                "catalog-flag",
                "how the tap takes its catalog: --properties for old ones",
                default="--catalog",
                choices=("--catalog", "--properties"),
            ),
            Option(
                "env.*",
                "a variable of its environment, which has none of ours but PATH, HOME and the like",
                secret=True,
            ),
            Option("pause", "the least time between the end of the tap and its next start", default="1m"),
            Option("timeout", "how long the tap may say nothing", default="10m"),
            Option(
                "record-id",
                "what names a record: key, its key properties, so that a row that changed has the id it had; content: "
                "these and all of its values",
                default="key",
                choices=("key", "content"),
            ),
            Option("schemas", "whether the schemas of its streams are registered", default="true"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        try:
            self._command = shlex.split(s["command"])
        except ValueError as error:
            raise ConfigError(f"singer: option 'command' is no command: {error}") from None
        if not self._command:
            raise ConfigError("singer: option 'command' is empty; name the tap")
        self._given = {n.removeprefix("config."): _json_or_text(v) for n, v in s.items() if n.startswith("config.")}
        self._env = {n.removeprefix("env."): v for n, v in s.items() if n.startswith("env.")}
        for option in ("config", "catalog"):
            if s.get(option, "").lstrip().startswith("{"):
                _object(s[option], option)
        self._select = options.words(s, "select")
        self._pause, self._timeout = options.duration(s, "pause"), options.duration(s, "timeout")
        if self._timeout < 1:
            raise ConfigError("singer: option 'timeout' must be at least 1s")
        self._registers = options.boolean(s, "schemas")
        self._ended: Token = None

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Plans one open slice, unless the tap came to its end a moment ago: it is not started to see what there is."""
        token = position.get("") or {}
        # Noted by a machine whose clock was ahead, it would hold up the tap until then.
        if abs(time.time() - token.get("ended", 0)) < self._pause:
            if why := token.get("failed"):
                raise SourceError(
                    f"singer: the tap {why}. What it said up to its last STATE is read; it is started again from there "
                    f"after {self._pause:g} s (pause)"
                )
            return []
        return [Slice("", "", position.get(""), None, hint=[limit.records, limit.bytes], open=True)]

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        self._ended = slice.start
        token = slice.start or {}
        begun, cut = token.get("state"), [] if "ended" in token else token.get("cut", [])
        with self._tap(begun) as tap:
            reading = _Reading(begun, cut, *slice.hint, content=self.settings["record-id"] == "content")
            registered = self._registry() if self._registers else None
            try:
                yield from reading.batches(tap, registered)
            except SourceError as error:
                # What was said up to a later STATE is sound, and would only be read again.
                if not reading.moved:
                    raise
                yield from reading.rest()
                self._ended = self._at(reading.state, failed=str(error).removeprefix("singer: the tap "))
                return
            finally:
                if registered is not None:
                    registered.close()
            yield from reading.rest()
            if reading.full:
                self._ended = {"state": reading.state, "cut": [*cut, _mark(reading.state)][-CUTS:]}
            elif tap.ended and not reading.moved:
                raise SourceError(f"singer: the tap {tap.ended}; it has said no new STATE, and is started again")
            else:
                self._ended = self._at(reading.state, failed=tap.ended)

    def _at(self, state: Any, failed: str) -> Token:
        if failed:
            log.error("singer: the tap of %s %s; what it said up to its last STATE is kept", self.connector, failed)
        token = {"ended": round(time.time(), 3)} | ({"failed": failed[:500]} if failed else {})
        return token if state is None else {"state": state, **token}

    def reached(self, slice: Slice) -> Token:
        return self._ended

    def discover(self) -> list[dict[str, Any]]:
        """Returns what the tap offers (`--discover`): stream, keys, replication, fields of each. Raises SourceError."""
        return listed(self._discovered())

    def _discovered(self) -> dict[str, Any]:
        with self._started(["--discover"], {}) as tap:
            text = b"\n".join(tap.lines())
            if tap.ended:
                raise SourceError(f"singer: --discover of the tap failed: it {tap.ended}")
        try:
            found: Any = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise SourceError("singer: the tap's --discover gives no JSON") from None
        chosen(found, ())
        catalog: dict[str, Any] = found
        return catalog

    def _tap(self, state: Any) -> Tap:
        arguments, files = [], {}
        if (catalog := self._catalog()) is not None:
            arguments += [self.settings["catalog-flag"], "{catalog.json}"]
            files["catalog.json"] = orjson.dumps(catalog)
        if state is not None:
            arguments += ["--state", "{state.json}"]
            files["state.json"] = jsons.dumps(state)
        return self._started(arguments, files)

    def _started(self, arguments: list[str], files: dict[str, bytes]) -> Tap:
        config = self._configuration()
        if config is not None:
            arguments, files = ["--config", "{config.json}", *arguments], {**files, "config.json": orjson.dumps(config)}
        hidden = {*_texts([self._env, list(self._given.values())]), *_secrets(config)}
        home = installation().home
        return Tap(
            [*self._command, *arguments],
            files,
            env=environment(self._env),
            cwd=str(home if home.is_dir() else os.getcwd()),
            timeout=self._timeout,
            mask=hiding(hidden),
        )

    def _configuration(self) -> dict[str, Any] | None:
        said = self._read("config")
        return {**(said or {}), **self._given} if said is not None or self._given else None

    def _catalog(self) -> dict[str, Any] | None:
        catalog = self._read("catalog")
        if catalog is None and self._select:
            catalog = self._discovered()
        return None if catalog is None else chosen(catalog, self._select)

    def _read(self, option: str) -> dict[str, Any] | None:
        """Returns the JSON object of a setting, or of the file that it names. Raises ConfigError."""
        said = self.settings.get(option, "").strip()
        if not said:
            return None
        if said.startswith("{"):
            return _object(said, option)
        try:
            with open(installation().path(said), encoding="utf-8") as file:
                return _object(file.read(), option)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"singer: option '{option}': the file cannot be read: {error}") from None

    def _registry(self) -> Registered:
        from conduit_tasks.connectors.singer.schema import Registered

        return Registered(f"{self.pipeline}.{self.connector}")


class _Reading:
    """What one run of a tap has said so far. `state`: its last STATE; `moved`: it is another one than that the tap
    was started with; `full`: as much was read as a micro-batch may have, up to a STATE."""

    def __init__(self, begun: Any, cut: Sequence[str], records: int | None, size: int | None, *, content: bool) -> None:
        self.state, self.moved, self.full = begun, False, False
        self._begun, self._cut, self._content = _mark(begun), cut, content
        self._most, self._most_bytes = records, size
        self._from = _hash(jsons.dumps(begun, sort_keys=True))
        self._count = self._size = self._held_bytes = 0
        self._held: list[Record] = []
        self._of: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {}

    def batches(self, tap: Tap, registered: Registered | None) -> Iterator[pa.RecordBatch]:
        """Yields the records to the end of the tap, or until it is full; the last ones are in `rest`. Raises
        SourceError."""
        for line in tap.lines():
            try:
                said = messages.parse(line)
            except SourceError as error:
                # What is quoted may be anything.
                raise SourceError(tap.mask(str(error))) from None
            if isinstance(said, messages.Record):
                self._held.append(self._record(said))
                self._count += 1
                self._size += len(line)
                self._held_bytes += len(line)
                if len(self._held) >= BATCH or self._held_bytes >= BATCH_BYTES:
                    yield from self.rest()
            elif isinstance(said, messages.State):
                self._moves(said.value, len(line))
                if self.full:
                    return
            elif isinstance(said, messages.Schema):
                meta = registered.register(said.stream, said.schema) if registered is not None else {}
                self._of[said.stream] = said.keys, {"opencdc.collection": said.stream, **meta}

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yields what is held."""
        import pyarrow as pa

        from conduit_tasks.record.schema import READ_SCHEMA, record_columns

        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            yield pa.RecordBatch.from_arrays(record_columns(held), schema=READ_SCHEMA)

    def _moves(self, state: Any, size: int) -> None:
        if size > STATE_BYTES:
            raise SourceError(f"singer: the tap printed a STATE of {size} bytes, {STATE_BYTES} is the most")
        mark = _mark(state)
        self.state, self.moved = state, mark != self._begun
        # A tap that has not got on, or comes back to where it was, would be started for the same records for ever.
        enough = (self._most is not None and self._count >= self._most) or (
            self._most_bytes is not None and self._size >= self._most_bytes
        )
        self.full = enough and self.moved and mark not in self._cut

    def _record(self, said: messages.Record) -> Record:
        from conduit_tasks.record.record import Record

        if said.stream not in self._of:
            raise SourceError(f"singer: the tap printed a RECORD of {said.stream} before its SCHEMA")
        keys, metadata = self._of[said.stream]
        row = said.record
        if missing := [key for key in keys if key not in row]:
            raise SourceError(
                f"singer: the tap printed a RECORD of {said.stream} without its key property {', '.join(missing)}"
            )
        if said.at and (at := _nanoseconds(said.at)):
            metadata = {**metadata, "opencdc.createdAt": at}
        key = jsons.dumps({name: row[name] for name in keys}) if keys else None
        named = key or f"{self._from}:{self._count}".encode()
        if self._content:
            named += f":{_hash(jsons.dumps(row, sort_keys=True))}".encode()
        deleted = row.get(DELETED) is not None
        return Record(
            f"{said.stream}:".encode() + named,
            "delete" if deleted else "create",
            metadata,
            key,
            row if deleted else None,
            None if deleted else row,
        )


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _mark(state: Any) -> str:
    """Returns a hash of where a STATE goes on; what it says of a stream that begins anew all the same is left out."""
    return _hash(jsons.dumps(_without(state), sort_keys=True))[:8]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(part) for key, part in value.items() if key not in NOT_RESUMED}
    return [_without(part) for part in value] if isinstance(value, list) else value


def _nanoseconds(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return ""
    return "" if at.tzinfo is None else f"{int(at.timestamp() * 1_000_000)}000"


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # The text may hold secrets.
        raise ConfigError(f"singer: option '{option}' is no JSON (line {error.lineno}, column {error.colno})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"singer: option '{option}' is no JSON object")
    return found


def _json_or_text(value: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _secrets(value: Any) -> Iterator[str]:
    """Yields every text below a key whose name says that it is secret."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _texts(part) if SECRET.search(key) else _secrets(part)
    elif isinstance(value, list):
        for part in value:
            yield from _secrets(part)


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in the value."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


SOURCE = SingerSource
