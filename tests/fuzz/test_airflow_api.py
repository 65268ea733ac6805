"""The API of the Airflow plugin: what comes in by an address or a body is answered by a page or a problem, and soon."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.airflow.api_client import ASK, airflow, api, broker_of, delivered
from tests.fuzz.hostile import EXAMPLES, TEXT, ending, fuzzed, json_like
from tests.operate.asking import here

__all__ = ["airflow", "api", "delivered", "here"]

PART, TIME = "data/a.jsonl", "2020-01-01T00:00:00Z"
FILE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl}}
      - {id: file, type: destination, plugin: log}
    processors:
      - {id: set, plugin: field.set, settings: {field: .Metadata.home, value: "1"}}
"""
ALONE = ("record", "letter", "place")
"""Fields of which a body has one."""
SOUND: dict[str, Any] = {
    "q": "p", "status": "running", "dag": "p", "offset": 0, "limit": 9, "since": TIME, "until": "2099-01-01",
    "key": "k",
    "error_class": "http 400", "micro_batch": 1, "pipeline_id": "p", "destination": "web", "epoch": 0, "seq": 3,
    "ordinal": 0, "record_id": "abcdef0123", "name": "conduit.js", "source": "in", "tokens": {PART: {"offset": 0}},
    "forget": [], "dry_run": True, "classes": ["http 400"], "keys": [], "micro_batches": [1], "ids": [], "from": TIME,
    "to": "2030-01-01", "destinations": ["web"], "what": "all", "force": True, "deadline": 1,
    "seconds": 600, "most": 8, "attention": True, "sort": "attention", "state": "open", "issue_id": "0123456789ab",
    "issue": "0123456789ab", "issues": [], "kind": "task", "order": "newest",
    "value": "1", "field": ".Key", "node": "", "last": 9, "record": '{"payload": {"after": {"n": 1}}}', "letter": None,
    "place": None, "file": FILE,
}  # fmt: skip
"""Parameter, or field of a body → a value that is right; every one that a route has is here."""
TIMES = [
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "9999-12-31T23:59:59.999999Z", "0001-01-01",
    "-62135596801", "1e300", "2024-01-01T00:00:00+99:99",
]  # fmt: skip
NUMBERS = [-1, 2**63, 10**30, "9" * 5_000, 1e300, float("nan"), float("-inf"), "1_0", "٣"]
TEXTS = ["\0", "\ud800", "a\0b", "x" * 100_000, "../..", "%", ""]
PLACES = [
    *("processors/1/0/0/0", "sources.in/1/0/0/0", "destinations.web/1/0/3/0", "destinations.web/9/9/9/9", "a/1/1/1/1"),
    *("sources./1/0/0/0", f"{'9' * 18}/1/1/1/1", f"sources.in/{'9' * 18}/0/0/0", "\ud800/1/1/1/1"),
    *("../../1/1/1/1", "sources.../1/0/0/0", "web/0/1/3/0", "web/1/1/3/0", "\0/1/1/1/1"),
]  # fmt: skip
VALUES = st.sampled_from([*TIMES, *NUMBERS, *TEXTS]) | TEXT
INNER = json_like() | VALUES | st.dictionaries(TEXT | st.just(PART), json_like(), max_size=2)
"""What a field of a body has."""
BODIES = [
    *(b'{"source":"in","dry_run":true,"tokens":{"%s":%s%s}}' % (PART.encode(), b"[" * n, b"]" * n) for n in (150, 950)),
    b"", b"null", b"[]", b'"\xff"', b"NaN", b"9" * 5_000, b"[" * 100_000, b'{"tokens":' * 50_000, b"\xff\xfe{\0}\0",
    b"{%s}" % b",".join(b'"%d":1' % n for n in range(5_000)), b'{"destination":"\\ud800","\\ud800":"\\ud800"}',
]  # fmt: skip


@dataclass(frozen=True)
class Route:
    """`query`, `path`, `fields`: names of its parameters, and of the fields of its body; None: it has no body."""

    method: str
    address: str
    path: list[str]
    query: list[str]
    fields: list[str] | None

    @property
    def names(self) -> list[str]:
        return [*self.path, *self.query, *(self.fields or ())]

    def request(self, given: dict[str, Any], body: bytes | None = None) -> tuple[str, str, bytes | None]:
        """Returns method, address and body; what is not given is sound, without a value of its own where it may be."""
        address, words = self.address, []
        for name in self.path:
            # An empty part would be another route.
            address = address.replace(f"{{{name}}}", _quoted(given.get(name, SOUND[name])) or "x")
        for name in self.query:
            if name in given:
                words.append(f"{name}={_quoted(given[name])}")
        if self.fields is not None and body is None:
            fields = {name: given.get(name, SOUND[name]) for name in self.fields}
            if given.keys() & {"letter", "place"}:
                fields |= {name: given.get(name) for name in ALONE}
            body = json.dumps(fields | given.get("", {})).encode()
        return self.method, f"{address}?{'&'.join(words)}", body


def _quoted(value: Any) -> str:
    return quote(str(value)[:5_000].encode("utf-8", "surrogatepass"), safe="")


def routes() -> Iterator[Route]:
    """Yields every route of the app."""
    from conduit_tasks.airflow.api.app import app

    described = app.openapi()
    for path, of in described["paths"].items():
        for method, about in of.items():
            fields = None
            if "requestBody" in about:
                named = about["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                fields = list(described["components"]["schemas"][named]["properties"])
            where = {
                kind: [p["name"] for p in about.get("parameters", ()) if p["in"] == kind] for kind in ("path", "query")
            }
            yield Route(method, path, where["path"], where["query"], fields)
    yield Route("get", "/pages/{name}", ["name"], [], None)


def odd(sound: Any) -> list[Any]:
    """Values that are wrong, or extreme, where this one is right."""
    if isinstance(sound, dict):
        return [{text: 1} for text in TEXTS] + [{PART: {"offset": value}} for value in [*NUMBERS, *TEXTS]]
    if isinstance(sound, list):
        return [[*sound, value] for value in [*NUMBERS, *TEXTS]]
    if isinstance(sound, int):
        return NUMBERS
    return TIMES if str(sound)[:2] == "20" else TEXTS + PLACES if sound is None else TEXTS


Asked = Callable[..., int]


@pytest.fixture
def ask(api: Any, delivered: None, here: None, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Function that sends a request, and sees that its answer is a page, or a problem that says why; and that what a
    run is started with is text that Airflow's database takes. Returns the status."""
    from conduit_tasks.airflow.api import dead_letters, live, replays

    def start(dag: str, run: str, user: str, conf: Any) -> None:
        assert b"\\u0000" not in orjson.dumps(conf)

    # A stream lasts for one look.
    monkeypatch.setattr(live, "LASTS", 0.0)
    monkeypatch.setattr(dead_letters, "start", start)
    monkeypatch.setattr(replays, "start", start)
    monkeypatch.setattr(replays, "results", lambda dags, limit, wanted: [])

    def send(method: str, address: str, body: bytes | None) -> int:
        with ending():
            said = api.request(method, address, content=body, headers={**ASK, "Content-Type": "application/json"})
        assert said.status_code < 500, said.text
        if said.status_code >= 400:
            assert said.headers["content-type"] == "application/problem+json"
            assert said.json()["detail"]
            assert len(said.content) < 50_000, "an answer is no echo"
        return int(said.status_code)

    return send


@pytest.mark.slow
def test_a_value_that_is_wrong_or_extreme_is_answered_in_every_place_of_every_route(ask: Asked) -> None:
    """Given requests that are sound but for one value, then each is answered by a page or by a problem."""
    every = list(routes())
    assert len(every) >= 20
    for route in every:
        assert ask(*route.request({})) < 400 or "{" in route.address, route
        for name in route.names:
            for value in odd(SOUND[name]):
                ask(*route.request({name: value}))
        for body in BODIES if route.fields is not None else ():
            assert ask(*route.request({}, body)) in (200, 400, 409, 422), (route, body[:40])


def test_no_run_is_started_with_a_text_that_airflows_database_does_not_take(ask: Asked) -> None:
    """Given a redrive that would start a run, then a text beside the sound ones that cannot be written is refused."""
    (redrive,) = (route for route in routes() if route.address.endswith("/redrive"))
    assert ask(*redrive.request({"dry_run": False})) == 200
    for text in ("a\0b", "\ud800"):
        assert ask(*redrive.request({"dry_run": False, "classes": ["http 400", text]})) == 422


def test_a_body_that_is_too_large_is_not_read_to_its_end(ask: Asked) -> None:
    """Given a body that is larger than any may be, then no more of it is taken in, whatever it says of its length."""
    from conduit_tasks.airflow.api.door import BODY

    for route in (route for route in routes() if route.fields is not None):
        assert ask(*route.request({}, b"{" + b" " * BODY + b"}")) == 413
        assert ask(*route.request({}, b"{" + b" " * (BODY - 2) + b"}")) in (200, 409, 422)


def test_a_problem_says_any_text(api: Any) -> None:
    """Given a text that is no Unicode, and one that is long, then both are said as far as they can be."""
    from conduit_tasks.airflow.api.problems import problem

    said = json.loads(problem(400, "no part '\ud800'", errors=[{"where": "\udfff"}]).body)
    assert (said["detail"], said["errors"]) == ("no part '?'", [{"where": "?"}])
    assert len(problem(400, "é" * 1_000_000).body) < 50_000


@pytest.mark.slow
@settings(fuzzed, max_examples=8 * EXAMPLES)
@given(data=st.data())
def test_whatever_is_asked_is_answered_by_a_page_or_by_a_problem(ask: Asked, data: st.DataObject) -> None:
    """Given several hostile values at once, of a pipeline that is stopped and started meanwhile."""
    route = data.draw(st.sampled_from([route for route in routes() if len(route.names) > 1]))
    given: dict[str, Any] = {}
    for name in route.names:
        if name != "pipeline_id" and data.draw(st.booleans()):
            own = st.sampled_from(odd(SOUND[name])) | st.just(SOUND[name])
            given[name] = data.draw(own | (INNER if name in (route.fields or ()) else VALUES))
    if data.draw(st.booleans()):
        broker_of("p").lifecycle.force_stop()
    given[""] = data.draw(st.dictionaries(TEXT, INNER, max_size=1))
    ask(*route.request(given))
