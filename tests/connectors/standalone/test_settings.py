"""Settings of standalone connectors: checked by the connector's own parameters, and passed on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.standalone import found, settled
from conduit_tasks.connectors.standalone.lines import parsed
from conduit_tasks.connectors.standalone.messages import message
from conduit_tasks.connectors.standalone.specs import wrong
from conduit_tasks.errors import ConfigError, UnknownPlugin
from tests.connectors.standalone.programs import started_by
from tests.micro_batch.harness import write_pipeline


def refused(side: str, **settings: str) -> str:
    cls: Any = getattr(registry, f"{side}_class")("standalone:counter")
    with pytest.raises(ConfigError) as raised:
        cls(settings)
    return str(raised.value)


@pytest.mark.parametrize(
    ("side", "settings", "says"),
    [
        ("source", {"cuont": "1"}, "unknown option 'cuont'; did you mean 'count'?"),
        ("source", {"count": "many"}, "option 'count' cannot be 'many': it is a whole number"),
        ("source", {"count": "-1"}, "option 'count' cannot be '-1': it must be more than -1"),
        ("source", {"mode": "sideways"}, "option 'mode' cannot be 'sideways'; it is one of up, down"),
        ("source", {"every": "soon"}, "option 'every' cannot be 'soon': it is a duration such as 5s"),
        ("source", {"columns.kind": "x"}, "unknown option 'columns.kind'"),
        ("source", {"conduit.idle": "x"}, "option 'conduit.idle'"),
        ("destination", {}, "option 'path' is missing"),
        ("destination", {"path": "x", "name": "N1"}, "option 'name' cannot be 'N1': it must match ^[a-z]+$"),
    ],
)
def test_a_wrong_setting_is_named(programs: Path, side: str, settings: dict[str, str], says: str) -> None:
    assert says in refused(side, **settings)


def test_settings_are_passed_on_without_ours_and_without_defaults(programs: Path) -> None:
    settings = {
        "count": "3",
        "sdk.batch.size": "10",
        "columns.a.kind": "int",
        "conduit.idle": "1s",
        "cloudevents.type": "x",
    }
    made = registry.source_class("standalone:counter")(settings)
    assert made.config == {"count": "3", "sdk.batch.size": "10", "columns.a.kind": "int"}


@pytest.mark.parametrize(
    ("rule", "value", "good"),
    [
        ({"type": 2, "value": "1"}, "2", True),
        ({"type": 2, "value": "1"}, "1", False),
        ({"type": 3, "value": "1"}, "0.5", True),
        ({"type": 3, "value": "1"}, "1", False),
        ({"type": 4, "value": "a,b"}, "b", True),
        ({"type": 4, "value": "a,b"}, "c", False),
        ({"type": 5, "value": "a,b"}, "c", True),
        ({"type": 5, "value": "a,b"}, "a", False),
        ({"type": 6, "value": "^a+$"}, "aa", True),
        ({"type": 6, "value": "^a+$"}, "ab", False),
    ],
)
def test_rules_of_the_protocol_hold(rule: dict[str, Any], value: str, good: bool) -> None:
    parameter = message("config.v1.Parameter")(type=1, validations=[rule])
    assert (wrong(parameter, value) == "") is good


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [(2, "-7", "7.5"), (3, "1e3", "x"), (4, "true", "yes"), (6, "1h30m", "1 hour")],
)
def test_types_of_the_protocol_hold(kind: int, good: str, bad: str) -> None:
    parameter = message("config.v1.Parameter")(type=kind)
    assert wrong(parameter, good) == ""
    assert wrong(parameter, bad)


def test_a_star_in_the_name_of_an_option_stands_for_any_text() -> None:
    spec = Spec("x", "X.", (Option("collections.*.options.*", ""), Option("columns.*.kind", ""), Option("more.*", "")))
    good = {"collections.users.options.id": "1", "columns.a.kind": "2", "more.of.it": "3"}
    assert spec.check(good) == good
    for name in ("collections.users", "columns.kind", "columns.a.kinds"):
        with pytest.raises(ConfigError, match=f"unknown option '{name}'"):
            spec.check({name: "x"})


def test_validate_reports_the_place_in_the_file(programs: Path, home: Path) -> None:
    from conduit_tasks.pipeline.load import load_file

    write_pipeline(
        home,
        "p",
        "version: '2.2'\npipelines:\n  - id: p\n    connectors:\n"
        "      - id: in\n        type: source\n        plugin: standalone:counter\n"
        "        settings:\n          count: many\n          mode: sideways\n"
        "      - {id: out, type: destination, plugin: 'standalone:counter@v9', settings: {path: x}}\n",
    )
    said = [(f.line, f.code, f.message) for f in load_file(home / "include/pipelines/p.yaml", plugins=True).findings]
    assert [(line, code) for line, code, _ in said] == [(9, "E205"), (10, "E205"), (11, "E203")]
    assert "has counter in version v0.2.0" in said[2][2]


def test_validate_and_explain_say_what_of_its_delivery_has_no_effect(programs: Path, home: Path) -> None:
    from conduit_tasks.pipeline.explain import explain
    from conduit_tasks.pipeline.load import load_file

    def written(delivery: str) -> Any:
        connector = "plugin: 'standalone:counter', settings: {path: x}"
        write_pipeline(
            home,
            "p",
            "version: '2.2'\npipelines:\n  - id: p\n    connectors:\n"
            "      - {id: in, type: source, plugin: file, settings: {path: x}}\n"
            f"      - {{id: out, type: destination, {connector}, delivery: {{{delivery}}}}}\n",
        )
        found = load_file(home / "include/pipelines/p.yaml", plugins=True)
        return [(f.code, f.message) for f in found.findings], found.pipelines

    def explained(pipeline: Any) -> str:
        [edge] = [edge for edge in explain(pipeline)["edges"] if edge["target"] == "destinations.out"]
        return str(edge["order"])

    # Several tasks, if a number is written: what must be so is said, and order-by says which task gets a record
    [(code, said), (_, unconfirmed)], [pipeline] = written("parallelism: 4, order-by: key, max-unconfirmed: 8")
    assert code == "W204"
    assert "what it writes to must take several writers that have one id" in said
    assert "whatever max-unconfirmed says" in unconfirmed
    assert explained(pipeline) == (
        "per key, in 64 lanes; free between keys; by up to 4 tasks beside each other, a lane by one of them"
    )
    # One task, if it is left to us
    [(code, said), (_, order)], [pipeline] = written("parallelism: auto, order-by: key")
    assert code == "W202"
    assert said.startswith("one task delivers to 'standalone:counter': Conduit runs a connector as one process")
    assert "in their order, one after the other, whatever order-by says" in order
    assert explained(pipeline).startswith("all records in their order, one write after the other, whatever order-by")
    assert "by one task, though parallelism is auto: Conduit runs a connector as one process" in explained(pipeline)


def test_the_newest_version_is_taken_and_a_version_can_be_asked_for(programs: Path) -> None:
    assert found.find("standalone:counter").specification.version == "v0.2.0"
    assert found.find("standalone:counter@0.2.0").file == programs / "conduit-connector-counter"
    assert found.find("standalone:connectors/conduit-connector-counter").specification.name == "counter"
    with pytest.raises(UnknownPlugin, match="there are standalone:books, standalone:counter, standalone:odd"):
        found.find("standalone:nothing")
    assert [found._order(v) for v in ("v0.9.0", "v0.10.0-rc1", "v0.10.0")] == sorted(
        found._order(v) for v in ("v0.10.0", "v0.9.0", "v0.10.0-rc1")
    )


def test_a_specification_is_asked_for_once(programs: Path, home: Path) -> None:
    found.find("standalone:odd")
    assert list((home / ".conduit/connectors").iterdir())
    found._KNOWN.clear()
    # A program that would not answer any more, of the same time and size
    stat = (programs / "odd").stat()
    text = (programs / "odd").read_text()
    (programs / "odd").write_text("#!/bin/false\n" + "#" * (len(text) - len("#!/bin/false\n")))
    import os

    os.utime(programs / "odd", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert found.find("standalone:odd").specification.name == "odd"


@pytest.mark.parametrize(
    "name", ["pwd", "dbPwd", "pat", "github.pat", "sessionId", "cookie", "pin", "privateText", "bearer"]
)
def test_what_may_be_a_credential_by_its_name_is_kept_as_a_digest_alone(name: str) -> None:
    assert "hunter2" not in str(settled.kept({name: "hunter2"}))


def test_a_login_in_a_value_is_kept_as_a_digest_alone_and_plain_words_are_kept() -> None:
    config = {"account": "me:hunter2@host", "pattern": "a*", "inside": "yes", "time": "12:30"}
    kept = settled.kept(config)
    assert kept["values"] == {"pattern": "a*", "inside": "yes", "time": "12:30"}
    # What an earlier version kept as it is, is no change of the settings
    assert settled.same({**kept, "values": config, "digests": {}}, config)
    assert not settled.same({**kept, "values": config, "digests": {}}, {**config, "account": "other"})
    # And it is kept as a digest from the next look on, without a word to the connector
    assert settled.tell(None, "source", {**kept, "values": config, "digests": {}}, config) == kept  # type: ignore[arg-type]


def test_what_is_kept_of_settings_holds_no_secret_and_tells_changes() -> None:
    before = settled.kept({"table": "orders", "url": "postgres://me:pw@host", "password": "hidden"})
    assert "hidden" not in json.dumps(before)
    assert "pw@" not in json.dumps(before)
    assert settled.same(before, {"table": "orders", "url": "postgres://me:pw@host", "password": "hidden"})
    now = {"table": "new", "url": "postgres://me:pw@host", "password": "other"}
    assert not settled.same(before, now)
    assert settled.config_before(before, now) == {"table": "orders", "url": "postgres://me:pw@host", "password": ""}


@pytest.mark.parametrize(
    ("line", "level", "said"),
    [
        ('{"level":"error","message":"no","component":"x","n":1}', 40, "no component=x n=1"),
        ('{"@level":"debug","@message":"hi","@timestamp":"now"}', 10, "hi"),
        ("2026-01-01 [INFO]  starting", 20, "starting"),
        ("just text", 30, "just text"),
        ("{broken", 30, "{broken"),
    ],
)
def test_log_lines_are_read_in_the_forms_that_connectors_write(line: str, level: int, said: str) -> None:
    assert parsed(line) == (level, said)


def conduit(*args: str) -> str:
    from conduit_tasks.cli.connectors import app

    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_the_command_line_lists_describes_and_tests_it(programs: Path, home: Path) -> None:
    started_by(programs, "broken", "nothing")
    rows = {row["name"]: row for row in json.loads(conduit("list", "--format", "json"))}
    assert rows["standalone:counter@v0.2.0"]["sides"] == ["source", "destination"]
    assert rows["standalone:books@v1.0.0"]["sides"] == ["source"]
    assert "cannot be run" in rows["standalone:broken"]["summary"]
    said = conduit("describe", "standalone:counter")
    assert "how far it counts" in said
    assert "conduit.idle" in said
    shutil.rmtree(home / ".conduit/connectors")
    tested = conduit(
        "test", "standalone:counter", "--source", "count=40", "--source", "conduit.first=300ms", "--wait", "1"
    )
    assert "✗" not in tested
    assert "what was acked does not come again" in tested
