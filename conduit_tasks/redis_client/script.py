"""Lua scripts as typed calls: a script's header is its contract, checked when it is loaded, and says whether a full
Redis refuses it.

A package that runs scripts has a folder `scripts/` with a file for each, or with folders of files. A script is known by
its name alone: in messages, in Redis' own log, and here. In front of its text stands that of `prelude.lua`, and of the
files of the folder that are for all of its scripts: `_shared.lua`, `_shared_….lua`.

A header line `-- @key NAME TYPE …` or `-- @arg NAME TYPE …` declares KEYS or ARGV in order; a type ending in `*N`
takes the rest of the list, at most N items; a type ending in `<N` is text that the script parses: at most N items
separated by commas, or JSON of at most N members. Redis serves nobody else while a script runs: N is chosen so that it
takes some 20 ms (`python -m benchmarks scripts`). The loader turns the declarations into `K.NAME` and `A.NAME` for the
script, encodes arguments by their type, and refuses a script that uses a name it does not declare.

A line `-- @grows` marks a script that takes in something new: a Redis at its maxmemory refuses it. All other scripts
still run, as memory is freed only once the work under way has ended.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import orjson
from redis.exceptions import NoScriptError

from conduit_tasks.redis_client.connection import Client, reaching

LIST = 20_000
"""Limit of items of a list whose header declares none."""
MEMBERS = 1_000
"""Limit of members of JSON whose header declares none: counters, fields of histograms, an error."""

_SHARED = "_shared"
_DECLARED = re.compile(r"^-- @(key|arg) +(\w+) +(\w+)([*<]?)(\d*)", re.MULTILINE)
_GROWS = re.compile(r"^-- @grows\b", re.MULTILINE)
_USED = re.compile(r"\b([KA])\.(\w+)")
_KEY_TYPES = {"hash", "set", "string", "stream", "zset", "any"}
_ARG_TYPES = {"int", "text", "json", "blob"}


@dataclass(frozen=True)
class Parameter:
    """One declared key or argument. `rest`: it takes a list, and is the last of its kind; `most`: limit of its items,
    None: the script does not parse it."""

    name: str
    type: str
    rest: bool
    most: int | None = None

    def encode(self, value: Any) -> list[str | bytes]:
        """Returns the value as Redis gets it. Raises TypeError if it is not of the declared type or has too many
        items."""
        if self.most is not None and (count := self._items(value)) > self.most:
            # The caller has to pass it in portions.
            raise TypeError(f"{self.name} takes at most {self.most:,} items, not {count:,}")
        return [self._one(v) for v in value] if self.rest else [self._one(value)]

    def _items(self, value: Any) -> int:
        if self.rest or self.type == "json":
            return len(value)
        return value.count(",") + 1 if isinstance(value, str) else 1

    def _one(self, value: Any) -> str | bytes:
        if self.type == "blob":
            if not isinstance(value, bytes):
                raise TypeError(f"{self.name} takes bytes, not {type(value).__name__}")
            return value
        if self.type == "json":
            return orjson.dumps(value).decode()
        if self.type == "int":
            # A bool, which is an int to Python, is a flag: Redis is sent 0 or 1.
            if not isinstance(value, int):
                raise TypeError(f"{self.name} takes an int, not {value!r}")
            return str(int(value))
        if not isinstance(value, str):
            raise TypeError(f"{self.name} takes a str, not {value!r}")
        return value


@dataclass(frozen=True)
class Script:
    """One script; it is called with every declared key and argument by name."""

    name: str
    source: str = field(repr=False)
    sha: str
    keys: tuple[Parameter, ...]
    args: tuple[Parameter, ...]

    def __call__(self, client: Client, keys: Mapping[str, str | Sequence[str]], **args: Any) -> list[Any]:
        """Runs the script: one command (EVALSHA), two if the server does not know the script yet.

        Raises BrokerUnavailable, and TypeError if the call does not fit the header.
        """
        count, flat = self.words(keys, args)
        with reaching(client):
            try:
                answer = client.evalsha(self.sha, count, *flat)
            except NoScriptError:
                answer = client.eval(self.source, count, *flat)
        return list(answer)

    def followed(
        self, client: Client, command: Sequence[Any], keys: Mapping[str, str | Sequence[str]], **args: Any
    ) -> tuple[list[Any], Any]:
        """Runs the script, and then `command` on the same connection; returns both answers."""
        answer, after = self.each(client, [self.words(keys, args)], [command])
        return list(answer), after

    def each(
        self, client: Client, calls: Iterable[tuple[int, Sequence[str | bytes]]], beside: Sequence[Sequence[Any]] = ()
    ) -> list[Any]:
        """Runs the script for each of `calls` (see `words`), and then the commands `beside`, in one round trip; returns
        all answers in order. If the server does not know the script yet, everything is sent again.

        Raises BrokerUnavailable.
        """
        calls = list(calls)
        with reaching(client):
            for command, script in (("EVALSHA", self.sha), ("EVAL", self.source)):
                batch: Any = client.pipeline(transaction=False)
                for count, words in calls:
                    batch.execute_command(command, script, count, *words)
                for of in beside:
                    batch.execute_command(*of)
                answers: list[Any] = batch.execute(raise_on_error=False)
                if any(isinstance(answer, NoScriptError) for answer in answers):
                    continue
                for answer in answers:
                    if isinstance(answer, Exception):
                        raise answer
                return answers
        raise AssertionError("EVAL brings the script along")

    def words(self, keys: Mapping[str, str | Sequence[str]], args: Mapping[str, Any]) -> tuple[int, list[str | bytes]]:
        """Returns the number of keys, then keys and arguments as Redis gets them."""
        flat = [*_flat(self.name, self.keys, keys), *_flat(self.name, self.args, args)]
        return sum(len(v) if not isinstance(v, str) else 1 for v in keys.values()), flat


def _flat(name: str, declared: tuple[Parameter, ...], given: Mapping[str, Any]) -> list[str | bytes]:
    wanted = {p.name for p in declared}
    if wanted != set(given):
        raise TypeError(f"{name}.lua takes {sorted(wanted)}, not {sorted(given)}")
    return [text for p in declared for text in p.encode(given[p.name])]


@cache
def paths(folder: Traversable) -> Mapping[str, Traversable]:
    """Returns name → file of the scripts of a folder, and of the folders in it. Raises TypeError if two have the same
    name."""
    inside = [*folder.iterdir()]
    every = [*inside, *(file for part in inside if part.is_dir() for file in part.iterdir())]
    scripts = [file for file in every if file.name.endswith(".lua") and not file.name.startswith(_SHARED)]
    found = {file.name.removesuffix(".lua"): file for file in scripts}
    if len(found) < len(scripts):
        raise TypeError(f"two scripts of {folder} have the same name")
    return found


def of_package(package: str) -> Traversable:
    """Returns the folder of a package's scripts."""
    return files(package) / "scripts"


def load(folder: Traversable, name: str) -> Script:
    """Loads a script of a folder. Raises KeyError if it has none of this name, TypeError if header and body do not
    fit together."""
    body = paths(folder)[name].read_text()  # type: ignore[arg-type]  # all that there are can be hashed
    declared: dict[str, list[Parameter]] = {"key": [], "arg": []}
    for kind, parameter, type_, mark, most in _DECLARED.findall(body):
        if declared[kind] and declared[kind][-1].rest:
            raise TypeError(f"{name}.lua declares {parameter} behind a list")
        if type_ not in (_KEY_TYPES if kind == "key" else _ARG_TYPES):
            raise TypeError(f"{name}.lua declares {parameter} as {type_}")
        bound = int(most) if most else LIST if mark == "*" else MEMBERS if type_ == "json" else None
        declared[kind].append(Parameter(parameter, type_, mark == "*", bound))
    used = set(_USED.findall(body))
    names = {("K", p.name) for p in declared["key"]} | {("A", p.name) for p in declared["arg"]}
    if used != names:
        raise TypeError(f"{name}.lua: header and body differ in {sorted(n for _, n in used ^ names)}")
    prelude = _prelude("K", "KEYS", declared["key"]) + _prelude("A", "ARGV", declared["arg"])
    if not _GROWS.search(body):
        prelude += _even_when_full(declared["key"])
    shared = sorted((file for file in folder.iterdir() if file.name.startswith(_SHARED)), key=lambda file: file.name)
    source = prelude + _common() + "".join(file.read_text() for file in shared) + body
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha, tuple(declared["key"]), tuple(declared["arg"]))


@cache
def _common() -> str:
    return (files(__package__) / "prelude.lua").read_text()


def _even_when_full(keys: list[Parameter]) -> str:
    """Returns a first command that lets a script write at maxmemory.

    Redis then refuses a write that may need memory only while the script has written nothing. Removing an absent field,
    or an absent key beside the first one, counts as a write, and is never refused (Redis 6.2 to Valkey 9).
    """
    at = next((i for i, key in enumerate(keys, 1) if key.type == "hash"), None)
    if at:
        return f"if KEYS[{at}] then redis.call('HDEL', KEYS[{at}], '') end\n"
    return "if KEYS[1] then redis.call('DEL', KEYS[1] .. ':absent') end\n"


def _prelude(table: str, origin: str, declared: list[Parameter]) -> str:
    lines = [f"local {table} = {{}}"]
    for i, p in enumerate(declared, 1):
        lines.append(
            f"{table}.{p.name} = {{}} for i = {i}, #{origin} do {table}.{p.name}[i - {i} + 1] = {origin}[i] end"
            if p.rest
            else f"{table}.{p.name} = {origin}[{i}]"
        )
    return "\n".join(lines) + "\n"
