"""While a script runs Redis serves nobody else: each takes, and touches, no more than a known number of things.

The scripts are those of the folders: a new one is held to the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks import longest
from benchmarks.calls import cases
from benchmarks.calls.parts import Call
from benchmarks.calls.stored import stored
from conduit_tasks.broker.broker import Broker
from conduit_tasks.connectors.base import Limit
from conduit_tasks.gateway.store import Budget, IngestStore
from conduit_tasks.redis_client.portions import PORTION
from conduit_tasks.redis_client.script import Script, paths
from conduit_tasks.redis_client.script import load as load_from
from conduit_tasks.verify.scripts import MODULES
from tests.broker.conftest import Feed, letter

FOLDERS = {name: module.FOLDER for module in MODULES for name in paths(module.FOLDER)}
NAMES = sorted(FOLDERS)
MOST = 20_000
"""Items of a list."""
COMMANDS = 13_000
"""Commands of one call, 1 to 2 microseconds each."""

WHOLE: Mapping[tuple[str, str], str] = {
    ("commit_ack", "HGETALL"): "an intent: at most acks.PARTS parts",
    ("share", "HGETALL"): "members and partitions of one topic",
    ("turn", "HGETALL"): "replays that are under way",
    ("start", "HKEYS"): "a nack window: three fields for each of 64 shards",
    ("renew", "unpack"): "three fields",
    ("together", "unpack"): "64 lanes",
    ("stage", "unpack"): "nodes of the pipeline file",
    ("ingest_add", "unpack"): "lanes that are given up at a time",
    **dict.fromkeys((("adopt", "decode"), ("rename", "decode")), "destinations of the pipeline file"),
    **dict.fromkeys((("matched", "decode"), ("complete", "decode")), "the same"),
    **dict.fromkeys((("seal", "decode"), ("stage", "decode")), "nodes of the file, slices of one source (plan.SLICES)"),
    ("restage", "decode"): "the same",
    ("slim", "unpack"): "nine fields",
    ("slim", "decode"): "stages and names of sources of the pipeline file",
    ("trip", "decode"): "one breaker: seven short texts",
    ("missed", "decode"): "one outage: five short texts",
    **dict.fromkeys(
        (("failed", "HGETALL"), ("failed", "decode")), "200 issues of at most 1,000 characters and 14 days"
    ),
}
"""What a script takes as a whole, and why that is bounded."""


def load(name: str) -> Script:
    return load_from(FOLDERS[name], name)


def text(name: str) -> str:
    return paths(FOLDERS[name])[name].read_text()


def body(name: str) -> str:
    """A script without its comments."""
    return re.sub(r"--.*", "", text(name))


def items(kind: str, count: int) -> Any:
    """So many of what a parameter takes."""
    if kind == "json":
        return {str(n): n for n in range(count)}
    return ",".join("1-1" for _ in range(count))


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_a_script_goes_through_has_a_bound_and_is_refused_beyond_it(name: str) -> None:
    script = load(name)
    for parameter in (*script.keys, *script.args):
        if parameter.most is None:
            continue
        assert parameter.most <= MOST, f"{name}.lua: {parameter.name}"
        one: Any = b"" if parameter.type == "blob" else 0 if parameter.type == "int" else ""
        for count in (parameter.most, parameter.most + 1):
            given = [one] * count if parameter.rest else items(parameter.type, count)
            if count == parameter.most:
                assert parameter.encode(given)
                continue
            with pytest.raises(TypeError, match=f"{parameter.name} takes at most {parameter.most:,} items"):
                parameter.encode(given)


def test_what_a_script_takes_apart_has_a_bound() -> None:
    apart = re.compile(r"(?:parse_ranges|gmatch|cjson\.decode)\(A\.(\w+)")
    found = [(name, argument) for name in NAMES for argument in apart.findall(body(name))]
    assert len(found) > 20
    for name, argument in found:
        bounds = {p.name: p.most for p in load(name).args}
        assert argument == "covered" or bounds[argument] is not None, f"{name}.lua: {argument} says no bound"


def has_loop(name: str) -> bool:
    lists = any(p.rest for p in (*load(name).keys, *load(name).args))
    # What goes through two or three names only has no list.
    return lists or any(whole == name for whole, how in WHOLE if whole != "renew" and how != "decode")


def test_every_script_with_a_list_has_a_case_with_all_it_takes() -> None:
    assert {name for name in NAMES if has_loop(name)} - {"renew"} <= {name.partition(" ")[0] for name in cases()}


@pytest.fixture(scope="module")
def whole() -> Mapping[str, Call]:
    """The cases, made once."""
    return cases()


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_a_script_with_all_it_takes_is_a_bounded_number_of_commands(
    broker: Broker, whole: Mapping[str, Call], name: str
) -> None:
    """Given what its header lets it take, then what it does is of the size that Redis does in some 20 ms; how long that
    is, `python -m benchmarks scripts` measures."""
    call = whole[name]
    longest.prepare(broker.redis, call)
    before = calls(broker)
    longest.once(broker.redis, name, call)
    assert 1 < calls(broker) - before < COMMANDS


def test_every_list_says_how_much_it_takes() -> None:
    bare = re.compile(r"^-- @(?:key|arg) +\w+ +\w+\*(?!\d).*", re.MULTILINE)
    unsaid = [(name, line) for name in NAMES for line in bare.findall(text(name))]
    assert not unsaid


def test_nothing_is_taken_as_a_whole_whose_size_is_not_known() -> None:
    found = {
        (name, command)
        for name in NAMES
        for command in ("HGETALL", "HKEYS", "HVALS", "SMEMBERS", "KEYS'", "LRANGE", "ZRANGE'", "XRANGE", "unpack")
        if re.search(rf"\b{command}", body(name)) and not (command == "XRANGE" and "'COUNT', 1" in body(name))
    }
    found |= {(name, "decode") for name in NAMES if re.search(r"decode\((?!A\.)", body(name))}
    assert found == set(WHOLE), "bound it, or go by portions; else say here why it is bounded"


def test_what_a_gateway_took_in_is_planned_by_its_number_not_by_its_size(broker: Broker) -> None:
    """Given 16 chunks of 4 MiB and as many of 400 bytes, then Redis is at a plan of either about as long."""
    took = {}
    for size in (400, 4 << 20):
        store = IngestStore("p", f"of-{size}", broker.redis)
        for group in range(1, 17):
            store.add("g", group, [1_000], [b"x" * size], Budget(10**6, 1 << 30))
        took[size] = min(spent(broker, store) for _ in range(9))
    # Where it copies the chunks that it looks at, it is hundreds of times as long.
    assert took[4 << 20] < 20 * took[400]


@pytest.mark.parametrize("name", stored(1))
def test_what_is_stored_does_not_make_a_call_longer(broker: Broker, name: str) -> None:
    """Given 50,000 lanes, schemas of a subject or micro-batches of a run, then Redis is at one call about as long as
    with ten."""

    def least(count: int, tries: int, enough: float = 0.0) -> float:
        """CPU seconds of Redis in the quickest of some calls, fewer if one is quick enough: its own rounds (`hz`) may
        fall into a call."""
        took = math.inf
        for _ in range(tries):
            call = stored(count)[name]
            longest.prepare(broker.redis, call)
            before = worked(broker)
            longest.once(broker.redis, name, call)
            took = min(took, worked(broker) - before)
            if took < enough:
                break
        return took

    # Where it goes through all of them, it is hundreds of times as long.
    most = 20 * least(10, 3)
    assert least(50_000, 10, most) < most


def spent(broker: Broker, store: IngestStore) -> float:
    """CPU seconds of Redis in one plan."""
    assert store.plan(None, Limit())
    before = worked(broker)
    store.plan(None, Limit())
    return worked(broker) - before


def worked(broker: Broker) -> float:
    """CPU seconds of the server's thread so far: another process on the same processor adds nothing to them."""
    told = broker.redis.info("cpu")
    return float(told["used_cpu_sys_main_thread"] + told["used_cpu_user_main_thread"])


def calls(broker: Broker) -> int:
    """Commands that the server has run, those within scripts included."""
    return sum(of["calls"] for of in broker.redis.info("commandstats").values())


def test_a_confirm_of_many_letters_and_ranges_costs_by_what_it_brings(feed: Feed) -> None:
    """Given 5,000 ranges confirmed apart, then one more is a handful of commands, and a letter is one command more."""
    broker, token = feed.broker, feed.lease("x").token
    m = feed.sealed(20_000)
    broker.deliveries.confirm("x", m, token, [(n, n) for n in range(0, 10_000, 2)], {"matched": 5_000})
    before = calls(broker)
    broker.deliveries.confirm("x", m, token, [(15_000, 15_000)], {"matched": 1})
    one = calls(broker) - before
    before = calls(broker)
    dead = [letter(m, n) for n in range(16_000, 16_000 + PORTION)]
    broker.deliveries.confirm("x", m, token, [(16_000, 16_000 + PORTION - 1)], {"matched": PORTION}, dead=dead)
    assert one < 30
    # Beside them, a call of `letters`: they do not go along with ranges, which may be megabytes.
    assert calls(broker) - before <= one + PORTION + 12


def test_what_is_more_than_one_command_takes_goes_in_several(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ack of more parts than it may tell at once tells a prefix of the micro-batches, and then the rest."""
    from conduit_tasks.broker import acks
    from tests.broker.conftest import DESTINATIONS, piece

    monkeypatch.setattr(acks, "PARTS", 3)
    broker = feed.broker
    for first in (0, 2, 4):
        slices = {"a": [piece(0, 5, part=f"f{n}") for n in range(first, first + 2)]}
        m = broker.micro_batches.open(slices, "config", broker.micro_batches.latest_sealed() + 1)
        with broker.leases.acquire("sources.a", "t") as lease:
            broker.micro_batches.stage("sources.a", m, lease.token, scripts_stage())
        feed.seal(m)
        feed.delivered(m)
    told = []
    while (ack := broker.acks.begin("a", DESTINATIONS, "delivered")) is not None:
        broker.acks.commit("a", ack)
        told.append((ack.m_from, ack.m_to, sorted(ack.position)))
    assert told == [(1, 1, ["f0", "f1"]), (2, 2, ["f2", "f3"]), (3, 3, ["f4", "f5"])]


def scripts_stage() -> Any:
    from conduit_tasks.broker.state import Stage

    return Stage("stage", [5, 5], 10)
