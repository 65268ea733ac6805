"""`singer` as a source: how a tap is started (config, catalog, STATE), and when again; of one that fails
what it said up to its last STATE counts.

A tap is asked for everything behind a STATE, and says by further STATEs where it would go on. Only reading finds out
where that is, so slices are open (docs/adr/0007-open-slices.md); how the rest of the contract is kept:
docs/adr/0030-singer-taps.md.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Discovering
from conduit_tasks.connectors.hiding import hiding
from conduit_tasks.connectors.singer.catalog import chosen, listed
from conduit_tasks.connectors.singer.process import Tap, environment
from conduit_tasks.connectors.singer.reading import Reading, mark
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record import jsons
from conduit_tasks.secret_names import CONFIG
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.singer.schema import Registered

log = logging.getLogger(__name__)

CUTS = 100
"""STATEs at which a tap was cut that are remembered."""


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
            reading = Reading(begun, cut, *slice.hint, content=self.settings["record-id"] == "content")
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
                self._ended = {"state": reading.state, "cut": [*cut, mark(reading.state)][-CUTS:]}
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
            yield from _texts(part) if CONFIG.search(key) else _secrets(part)
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
