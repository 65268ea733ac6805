"""A script's header is its contract."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import conduit_tasks
from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.redis_client import script
from conduit_tasks.verify.scripts import MODULES
from conduit_tasks.verify.scripts import scripts as every

PACKAGE = Path(conduit_tasks.__file__).parent


def load(tmp_path: Path, body: str) -> script.Script:
    (tmp_path / "part").mkdir(parents=True)
    (tmp_path / "part" / "one.lua").write_text(body)
    return script.load(tmp_path, "one")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("-- @key a hash\nreturn {'ok', K.a, A.b}", "differ in .'b'."),
        ("-- @key a hash\n-- @arg b int\nreturn {'ok', K.a}", "differ in .'b'."),
        ("-- @key a hash*9\n-- @key b hash\nreturn {K.a, K.b}", "declares b behind a list"),
        ("-- @arg a float\nreturn A.a", "declares a as float"),
    ],
)
def test_a_header_that_does_not_fit_its_body_fails_when_it_is_loaded(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        load(tmp_path, body)


def test_a_script_is_known_by_its_name_alone(tmp_path: Path) -> None:
    for part in ("one", "other"):
        (tmp_path / part).mkdir()
        (tmp_path / part / f"in_{part}.lua").touch()
    (tmp_path / "beside.lua").touch()
    assert sorted(script.paths(tmp_path)) == ["beside", "in_one", "in_other"]
    for again in (tmp_path / "other" / "in_one.lua", tmp_path / "in_other.lua"):
        script.paths.cache_clear()
        again.touch()
        with pytest.raises(TypeError, match="have the same name"):
            script.paths(tmp_path)
        again.unlink()


def test_no_two_packages_have_a_script_of_one_name() -> None:
    names = [found.name for _, _, found in every()]
    assert sorted(set(names)) == sorted(names)


def test_every_script_that_lies_in_a_folder_is_loaded() -> None:
    lying = {name for module in MODULES for name in script.paths(module.FOLDER)}
    assert lying == {found.name for _, _, found in every()}
    assert len(lying) == len([*PACKAGE.rglob("*.lua")]) - len(["prelude", "_shared", "_shared_divisions"])


def test_a_script_lies_in_the_folder_of_the_part_that_runs_it(broker: Broker) -> None:
    modules = {name: sys.modules[type(part).__module__] for name, part in vars(broker).items()}
    parts = {name: module for name, module in modules.items() if module.__name__.startswith("conduit_tasks.broker.")}
    run = {
        (name, getattr(scripts, constant).name)
        for name, module in parts.items()
        for constant in re.findall(r"\bscripts\.([A-Z_]+)\b", Path(str(module.__file__)).read_text())
    }
    assert {"leases", "micro_batches", "deliveries", "acks"} <= {name for name, _ in run}
    assert {(name, of) for name, of in run if script.paths(scripts.FOLDER)[of].parent.name != name} == set()  # type: ignore[attr-defined, arg-type]


def test_a_call_that_does_not_fit_the_header_never_reaches_redis(broker: Broker) -> None:
    with pytest.raises(TypeError, match=r"renew.lua takes .*'token'"):
        scripts.RENEW(broker.redis, {"lease": "l", "scopes": []}, tokens=1)
    with pytest.raises(TypeError, match="token takes an int"):
        scripts.RENEW(broker.redis, {"lease": "l", "scopes": []}, token="1")


def test_lists_and_json_arrive_as_declared(broker: Broker, tmp_path: Path) -> None:
    body = """
-- @key one   hash
-- @key more  hash*9
-- @arg n     int
-- @arg data  json
-- @arg rest  text*9
return {K.one, #K.more, K.more[2], A.n, cjson.decode(A.data).deep[1], #A.rest, A.rest[3]}
"""
    found = load(tmp_path, body)
    keys = {"one": "{t}1", "more": ["{t}2", "{t}3"]}
    big = 9_007_199_254_740_991
    answer = found(broker.redis, keys, n=big, data={"deep": ["é"]}, rest=["a", "b", "c"])
    assert answer == ["{t}1", 2, "{t}3", str(big), "é", 3, "c"]


BESIDE_SCRIPTS = {
    ("broker/lifecycle.py", "hsetnx"): "the state of a new pipeline: something new, which a full Redis refuses",
    ("broker/lifecycle.py", "set"): "the same",
    ("broker/redeliveries.py", "unlink"): "frees, and is never refused",
    ("broker/redeliveries.py", "hdel"): "the same",
}
"""What is written beside scripts, and why a Redis that is full may be asked for it so."""


def test_what_a_full_redis_has_to_take_is_written_by_scripts(broker: Broker) -> None:
    """Given every command that Redis says writes, and may refuse where it is full, then the package sends none of them
    but within a script, which says whether it takes in something new (`@grows`)."""
    listed: Any = broker.redis.execute_command("COMMAND")
    names = {str(name) for name, of in listed.items() if "write" in of["flags"]}
    assert {"hset", "hsetnx", "sadd", "xadd", "expire", "unlink"} <= names
    found = set()
    for path in PACKAGE.rglob("*.py"):
        place = str(path.relative_to(PACKAGE))
        # Connectors talk to a Redis of the user's; `verify` breaks what it looks on at.
        if not place.startswith(("connectors/", "verify/")):
            found |= {(place, name) for name in sent(ast.parse(path.read_text())) if name in names}
    assert found == set(BESIDE_SCRIPTS)


def sent(module: ast.Module) -> Iterator[str]:
    """Names of commands: what tuples begin with in capitals, and what is called on something named redis or client."""
    for node in ast.walk(module):
        match node:
            case ast.Tuple(elts=[ast.Constant(value=str(name)), *_]) if name.isupper():
                yield name.lower()
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of) | ast.Attribute(attr=of), attr=name)):
                if of in {"redis", "client", "_redis", "_client"}:
                    yield name
