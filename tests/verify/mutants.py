# ruff: noqa: E501 - the patches are lines of other files
"""Guarantees broken on purpose, as named patches of the package's own text, Python or Lua.

A patch is put into the code that is loaded and taken out again: functions get the code of the changed text, scripts
their changed source. So a mutant costs what its seeds cost, and no second interpreter.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import conduit_tasks
from conduit_tasks.broker import scripts

PACKAGE = Path(conduit_tasks.__file__).parent


@dataclass(frozen=True)
class Mutant:
    """`file`: below `conduit_tasks`; each of `changes`: a text that is in it once → what stands there instead."""

    name: str
    file: str
    changes: dict[str, str]
    theme: str = ""
    """Of the seeds that aim at it; empty: any."""
    also: Mutant | None = None
    """What has to be broken with it, as each alone would still be caught by the other."""
    begin: int = 0
    """The seed that the test tries first, where those before it find nothing or take long; 0: the theme's first."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The package is broken meanwhile. Raises ValueError where the text has moved on."""
        text = (files("conduit_tasks") / self.file).read_text()
        changed = text
        for old, new in self.changes.items():
            if changed.count(old) != 1:
                raise ValueError(f"{self.name}: {self.file} has {changed.count(old)} times {old!r}")
            changed = changed.replace(old, new)
        with ExitStack() as stack:
            if self.also is not None:
                stack.enter_context(self.also.applied())
            for target, name, value in (_scripts if self.file.endswith(".lua") else _functions)(
                self.file, text, changed
            ):
                stack.callback(setattr, target, name, getattr(target, name))
                setattr(target, name, value)
            yield


def _scripts(file: str, text: str, changed: str) -> Iterator[tuple[Any, str, Any]]:
    for name, script in list(vars(scripts).items()):
        if isinstance(script, scripts.Script) and text in script.source:
            source = script.source.replace(text, changed)
            if scripts._GROWS.search(changed):
                source = source.replace(scripts._even_when_full([*script.keys]), "")
            sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            yield scripts, name, replace(script, source=source, sha=sha)


def _functions(file: str, text: str, changed: str) -> Iterator[tuple[Any, str, Any]]:
    """Functions and methods whose code the change touches; who has imported them has them too."""
    module = import_module("conduit_tasks." + file.removesuffix(".py").replace("/", "."))
    before, after = (dict(_codes(compile(t, module.__file__ or file, "exec"))) for t in (text, changed))
    found = False
    for path, code in after.items():
        if code == before.get(path):
            continue
        function = _find(module, path)
        if function is not None:
            found = True
            yield function, "__code__", code
    if not found:
        raise ValueError(f"{file}: the change touches no function")


def _codes(code: CodeType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            here = (*path, constant.co_name)
            yield here, constant
            yield from _codes(constant, here)


def _find(module: Any, path: tuple[str, ...]) -> FunctionType | None:
    found: Any = module
    for name in path:
        found = vars(found).get(name) if not isinstance(found, FunctionType) else None
        found = getattr(found, "fget", None) or getattr(found, "__wrapped__", None) or found
        found = getattr(found, "__func__", found)
        if found is None:
            return None
    return found if isinstance(found, FunctionType) else None


def lua(name: str, script: str, old: str, new: str = "", theme: str = "", begin: int = 0) -> Mutant:
    """A mutant of a script."""
    (file,) = PACKAGE.glob(f"broker/scripts/**/{script}.lua")
    return Mutant(name, file.relative_to(PACKAGE).as_posix(), {old: new}, theme, begin=begin)


HELD = "  if (held[1] ~= token and held[3] ~= token) or not held[2] or held[2] == '' then"
NO_GUARD = "local no = guard_done(K.lease, A.token)\nif no then return no end\n"
ACK_GUARD = "local no = fenced(K.lease, A.token)\n  if no then return no end\n  renew(K.lease, A.token)"

ASKED = "so let it be called.\n            return 0.0"
TAKEN_OVER = "after.takes_over(node) or course.now - after.since > TAKES_OVER"
KEPT = "  if found[2] == '1' and A.lasts == '1' then redis.call('RENAME', K.under_way, K.before) end"
ENDLESS = "            async with asyncio.timeout(CLOSING):\n                await self._destination.close()"
WRITE = "        first, last = int(chunk.seqs[0]), int(chunk.seqs[-1])\n        work = self._work\n"
HURRIED = """        if work.chain is None and not work.culprits and len(chunk.seqs) == work.matched:
            self._port.confirm([(0, work.total - 1)], {"matched": chunk.records, "delivered": chunk.records})
"""

MUTANTS = [
    # Scripts
    lua("overlap", "confirm", "if repeated == 'some' then return broken(", "if false then return broken("),
    lua("unfenced", "_shared", HELD, "  if false then"),
    lua("confirm without fencing", "confirm", NO_GUARD),
    lua("confirm beyond the next", "confirm", "if m ~= cursor + 1 or mb[1] ~= 'sealed' then", "if false then"),
    lua(
        "cursor moved with a gap",
        "confirm",
        "if all == range_text(0, total - 1) then",
        "if string.match(all, '%-(%d+)$') == text(total - 1) then",
        begin=6,
    ),
    Mutant(
        "attempts are not fenced",
        "broker/scripts/leases/attempt.lua",
        {
            "if till > 0 and free > now then": "if false then",
            "return {'ok', l[5], l[3], l[4], ''}": "redis.call('HDEL', K.lease, 'attempt') return {'ok', A.token, l[3], l[4], ''}",
        },
        "attempts",
    ),
    lua("begin_ack unguarded", "begin_ack", "if tonumber(A.to) > limit then", "if false then"),
    lua("begin_ack unfenced", "begin_ack", ACK_GUARD, "renew(K.lease, A.token)"),
    lua("begin_ack by sealed alone", "begin_ack", "limit = math.min(limit, number(redis.call('HGET', key, 'cursor')))"),
    lua("commit_ack unfenced", "commit_ack", ACK_GUARD, "renew(K.lease, A.token)"),
    lua("commit_ack of what was not begun", "commit_ack", "if a[2] ~= A.from or a[3] ~= A.to then", "if false then"),
    lua(
        "degraded does not halt",
        "_shared",
        "if p[1] == 'stopped' or p[1] == 'degraded' then",
        "if p[1] == 'stopped' then",
    ),
    lua(
        "stopped does not halt",
        "_shared",
        "if p[1] == 'stopped' or p[1] == 'degraded' then",
        "if p[1] == 'degraded' then",
    ),
    lua(
        "release leaves one behind",
        "release",
        "if tonumber(A.expect) >= 0 and number(redis.call('HGET', K.pipeline, 'sealed')) > tonumber(A.expect) then",
        "if false then",
    ),
    lua(
        "stage by the last",
        "stage",
        "if redis.call('HEXISTS', K.micro_batch, 'stage:' .. A.node) == 0 then",
        "if true then",
    ),
    lua("seal by the last", "seal", "if mb[1] ~= 'open' then return", "if false then return", begin=4),
    lua(
        "restage keeps the index",
        "restage",
        "if not seen[partition] then redis.call('HSET', K.each[leases + i], partition, index) end",
        "",
        "restage",
    ),
    lua(
        "restage keeps what was staged",
        "restage",
        "  redis.call('HDEL', K.micro_batch, 'stage:' .. node, 'first:' .. node, 'won:' .. node)\n",
        "",
        "restage",
    ),
    lua(
        "restage fences nobody",
        "restage",
        "text(math.max(token, now_us())), 'owner', '', 'until', '0')",
        "l[1])",
        "restage",
    ),
    lua(
        "restage of what is sealed",
        "restage",
        "if redis.call('HGET', K.pipeline, 'unsealed') ~= A.m then return {'ok'} end",
        "",
        "restage",
    ),
    lua(
        "a lease held by a clock that went back",
        "acquire",
        "local till = within(l[3], now, l[6])",
        "local till = number(l[3])",
        "clocks",
        begin=69,
    ),
    lua(
        "an attempt held by a clock that went back",
        "attempt",
        "local till = within(l[6], now, l[3])",
        "local till = number(l[6])",
        "clocks",
        begin=43,
    ),
    lua("a lease given twice", "acquire", "if l[2] and l[2] ~= '' and free > now then", "if false then"),
    lua(
        "a token given twice",
        "acquire",
        "math.max(number(l[1]) + 1, number(l[7]) + 1, now)",
        "math.max(number(l[1]), 1)",
    ),
    lua(
        "begin_collect unguarded",
        "begin_collect",
        "  if passed < m then return broken(",
        "  if false then return broken(",
    ),
    lua(
        "end_collect unguarded",
        "end_collect",
        "if redis.call('HGET', K.micro_batch, 'state') ~= 'collecting' then",
        "if false then",
        begin=55,
    ),
    lua(
        "a vote counts twice",
        "vote",
        "local skip = math.max(0, math.min(count, following - ordinal))",
        "local skip = 0",
        "collect",
    ),
    lua(
        "a stop forgets what was delivered",
        "confirm",
        "guard_done(K.lease, A.token)",
        "guard(K.pipeline, K.lease, A.token, K.destination)",
        "trip",
    ),
    lua(
        "an empty read is progress",
        "stage",
        "  if attempts then redis.call('HSET', K.lease, 'attempts', attempts) end\n",
        "",
        "queue",
    ),
    # Python
    Mutant(
        "a lease that nobody asks for behind a clock that went back",
        "broker/leases.py",
        {ASKED: "\n            return int(ttl or 0) / 1e6 + self.lease_grace"},
        "clocks",
        begin=69,
    ),
    Mutant(
        "what is staged is read again",
        "micro_batch/read.py",
        {
            'if found is not None and found.state == "open" and source.node not in found.stages:': "if found is not None:"
        },
        "restage",
    ),
    Mutant(
        "connections are waited for without end",
        "delivery/attempts.py",
        {ENDLESS: ENDLESS.replace("timeout(CLOSING)", "timeout(None)")},
        "silence",
    ),
    Mutant(
        "commit_ack before the source is told",
        "micro_batch/acks.py",
        {
            "                began = time.monotonic()\n": "                began = time.monotonic()\n                context.broker.acks.commit(source_id, due, lease.token, {})\n",
            "            context.broker.acks.commit(source_id, due, lease.token, took)\n": "",
        },
    ),
    Mutant("collection beyond proven", "micro_batch/acks.py", {"due[: proven(context, due)]": "due"}, "collect"),
    Mutant(
        "a spool file collected too early",
        "broker/collection.py",
        {"(collected + 1, min([sealed, *cursors, *acked]), sealed)": "(collected + 1, sealed, sealed)"},
        "collect",
        Mutant(
            "",
            "micro_batch/acks.py",
            {"due[: proven(context, due)]": "due"},
            also=lua("", "begin_collect", "  if passed < m then return broken(", "  if false then return broken("),
        ),
        begin=107,
    ),
    Mutant(
        "ack before the last destination",
        "micro_batch/acks.py",
        {
            "    destinations = [d.id for d in context.pipeline.destinations]\n    given": "    destinations = [d.id for d in context.pipeline.destinations][:-1]\n    given"
        },
        "collect",
    ),
    Mutant(
        "vote after store",
        "delivery/committer.py",
        {
            "        accepted, stopped = self._vote(flush)\n": "        if hurried := flush.settled(None).letters:\n            self._store(hurried)\n        accepted, stopped = self._vote(flush)\n",
        },
        "trip",
    ),
    Mutant(
        "vote after store, before the fan-out",
        "micro_batch/seal.py",
        {
            "    queue = pipeline.dead_letters\n": "    queue = pipeline.dead_letters\n    if letters:\n        context.dead_letters(queue, None).store(list(letters.letters()))\n",
        },
        "trip",
    ),
    Mutant(
        "dead letters thrown away",
        "dead_letters/store.py",
        {"for part in portions(letters):": "for part in ():"},
    ),
    Mutant(
        "letters brought back only where none is left",
        "dead_letters/restored.py",
        {
            "        if rows:\n            out[keys.dead(own)]": "        if rows and not broker.dead_letters.count(own):\n            out[keys.dead(own)]"
        },
        "older",
        begin=145,
    ),
    Mutant(
        "letters that are not brought back",
        "dead_letters/restored.py",
        {"        if rows:\n            out[keys.dead(own)]": "        if False:\n            out[keys.dead(own)]"},
        "older",
        begin=145,
    ),
    Mutant(
        "a forgotten fsync",
        "connectors/file/destination.py",
        {"size)\n            os.fsync(self._fd)\n": "size)\n"},
        "power",
        begin=85,
    ),
    Mutant(
        "what is gone is passed over unasked",
        "connectors/missing.py",
        {
            'if source.settings["missing"] != "skip":\n            raise Missing(f"{error}. {ways_out(source': 'if False:\n            raise Missing(f"{error}. {ways_out(source'
        },
        "vanish",
        begin=155,
    ),
    Mutant(
        "confirmed before it is written",
        "delivery/batch_wise.py",
        {WRITE: WRITE + HURRIED},
        "torn",
    ),
    Mutant(
        "a forgotten cut",
        "connectors/file/destination.py",
        {"self._size = self._confirmed(path, size, state)": "self._confirmed(path, size, state); self._size = size"},
        "torn",
    ),
    Mutant(
        "of a batch that is cut only the first part is taken",
        "delivery/chunks.py",
        {
            "_small(handed.coming(batches), limit)": "handed.coming(_small(batches, limit))",
            "for part in cut(batch, limit):": "for part in list(cut(batch, limit))[:1]:",
        },
        "sizes",
    ),
    # What frees memory
    lua(
        "an ack is refused where Redis is full",
        "commit_ack",
        "-- @returns ok",
        "-- @grows\n-- @returns ok",
        "full",
    ),
    # Runs that last
    Mutant(
        "taken over from before the next is ready",
        "broker/runs.py",
        {"return node in self.ready and self.at_work(node)": "return self.at_work(node)"},
        "handover",
    ),
    Mutant(
        "a run that does not hand over",
        "micro_batch/draining.py",
        {f"if after is not None and ({TAKEN_OVER}):": "if False:"},
        "handover",
    ),
    Mutant(
        "a node that never says it is ready",
        "micro_batch/node.py",
        {"            self.draining.ready(self.node)\n": ""},
        "handover",
    ),
    lua("the run before is not kept", "begin_run", KEPT, "", "handover"),
    # What is sent again
    lua(
        "settle unfenced", "settle", "local no = guard_done(K.lease, A.token)\nif no then return no end\n", "", "resend"
    ),
    Mutant(
        "letters of destinations dispatched before they are stored",
        "redrive/before_fan_out.py",
        {"            DeadLetterStore(self._root, pipeline.id, id).store(each)\n": "            pass\n"},
        "resend",
    ),
]
"""Every one is found by `conduit verify`."""


def main(count: int, *names: str) -> None:
    """Prints in how many of its first `count` seeds each is found, by what, and the seconds."""
    import time

    from conduit_tasks.verify.run import verify
    from conduit_tasks.verify.server import cleaned_up
    from conduit_tasks.verify.themes import seeds_of

    with cleaned_up():
        for mutant in MUTANTS:
            if names and mutant.name not in names:
                continue
            began = time.process_time()
            with mutant.applied():
                seeds = list(islice(seeds_of(mutant.theme), count))
                results = list(verify(seeds, 16, 1))
            found = [r for r in results if not r.ok]
            said = found[0].found.violations[0] if found else "NOT FOUND"
            print(
                f"{mutant.name:40}{len(found):4} of {count}{time.process_time() - began:7.1f} s  {said[:110]}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
