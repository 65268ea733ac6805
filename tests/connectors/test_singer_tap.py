"""A tap as a process: what it is started with, what its log may show, and that nothing of it is left."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.connectors.singer.connector import SingerSource
from conduit_tasks.errors import ConfigError, SourceError
from tests.connectors import tap as script
from tests.connectors.test_singer import ROW, TAP, fails, read, source, step
from tests.waiting import until

SECRET = "hunter2-is-secret"


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match="no-such-tap cannot be run: No such file or directory"):
        read(SingerSource({"command": "/no-such-tap --x", "schemas": "false"}))


def test_the_log_of_a_tap_is_ours_and_hides_what_its_config_holds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    steps = {**step(["log", "connecting with {token}"], ROW, ["raw", f"{SECRET} in stdout\n"]), "token": SECRET}
    said = fails(steps)
    assert "python" in caplog.text
    assert "connecting with ***" in caplog.text
    assert SECRET not in caplog.text + said
    by_key = {"config.token": SECRET, "env.TOKEN": SECRET}
    with pytest.raises(SourceError):
        read(source(step(["log", "again {token}"], ["exit", 1]), **by_key))
    assert "again ***" in caplog.text
    assert SECRET not in caplog.text
    # Nor as it is written in a URL, or in JSON, nor a line of a key
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END KEY-----"
    config = {"config.token": 'a"b@c/d', "config.private": key}
    line = 'db://u:a%22b%40c%2Fd@h {"token": "a\\"b@c/d"} MIIEvQIBADANBgkqhkiG9w0BAQEF'
    with pytest.raises(SourceError):
        read(source({**step(["log", "{line}"], ["exit", 1]), "line": line}, **config))
    assert any(said.endswith('db://u:***@h {"token": "***"} ***') for said in caplog.messages)


def test_the_environment_is_clean_and_its_files_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", SECRET)
    monkeypatch.setenv("CONDUIT_REDIS_URL", "redis://h")
    [one, files] = read(source(step(["env"], ["files"]), **{"env.API": "x", "config.n": "3"}))
    env = one.after["env"]  # type: ignore[index]
    assert env["API"] == "x"
    assert env["PATH"] == os.environ["PATH"]
    assert not [name for name in env if name.startswith(("AIRFLOW", "CONDUIT", "PYTHONPATH"))]
    about: Any = files.after
    assert set(about["files"].values()) == {"0o600"}
    assert about["folder"] == "0o700"
    assert not [name for name in about["files"] if Path(name).exists()]


def test_config_comes_from_a_file_inline_and_by_key(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"rows": 2}))
    assert len(read(source(config=str(file)))) == 2
    assert len(read(source(None, **{"config": str(file), "config.rows": "5"}))) == 5
    with pytest.raises(ConfigError, match="option 'config': the file cannot be read"):
        read(source(config=str(tmp_path / "none.json")))
    file.write_text("{")
    with pytest.raises(ConfigError, match="option 'config' is no JSON"):
        read(source(config=str(file)))


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--catalog", "--properties"])
def test_streams_and_fields_are_selected_of_what_it_discovers_or_of_a_catalog(tmp_path: Path, flag: str) -> None:
    of = source({"x": 1}, catalog_flag=flag, select="shop.orders, !shop.orders.secret")
    assert [(r.metadata["opencdc.collection"], r.after) for r in read(of)] == [("shop.orders", {"id": 1})]
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps(script.CATALOG))
    assert len(read(source({"x": 1}, catalog_flag=flag, catalog=str(file), select="!users.secret"))) == 2
    assert read(source({"x": 1}, catalog_flag=flag, catalog=str(file))) == []
    for select, said in (("user", "names the stream user, the tap has users, shop.orders"), ("!x.y", "leaves out x.y")):
        with pytest.raises(ConfigError, match=said):
            read(source({"x": 1}, select=select))
    with pytest.raises(SourceError, match=r"--discover of the tap failed: it python.* ended with exit code 4"):
        read(source({"discover_exit": 4}, select="users"))
    with pytest.raises(SourceError, match="the catalog has no list of streams"):
        read(source({"catalog": {"a": 1}}, select="users"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "option 'command' is missing"),
        ({"command": "'"}, "option 'command' is no command"),
        ({"command": "t", "config": "{secret"}, "option 'config' is no JSON"),
        ({"command": "t", "catalog": "{"}, "option 'catalog' is no JSON"),
        ({"command": "t", "pause": "soon"}, "option 'pause'"),
        ({"command": "t", "timeout": "0s"}, "option 'timeout' must be at least 1s"),
        ({"command": "t", "record-id": "hash"}, "option 'record-id' cannot be 'hash'"),
        ({"command": "t", "catalog-flag": "-c"}, "option 'catalog-flag' cannot be"),
        ({"command": "t", "schemas": "yes"}, "option 'schemas'"),
        ({"command": "t", "streams": "a"}, "unknown option 'streams'"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SingerSource(settings)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_tap_and_what_it_started_end_with_the_process_that_reads(tmp_path: Path, how: signal.Signals) -> None:
    pids = tmp_path / "pids"
    config = json.dumps(step(["spawn", str(pids)], ["sleep", 600]))
    code = (
        "from conduit_tasks.connectors.base import Slice\n"
        "from conduit_tasks.connectors.singer.connector import SingerSource\n"
        f"of = SingerSource({{'command': {TAP!r}, 'config': {config!r}, 'schemas': 'false'}})\n"
        "list(of.read(Slice('', '', None, None, hint=[None, None], open=True)))\n"
    )
    reader = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        found = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        reader.send_signal(how)
        reader.wait(240)
        until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in found))
    finally:
        reader.kill()
        reader.wait(240)


def test_what_a_tap_offers_is_described(home: Path) -> None:
    asked = ["connectors", "describe", "singer", "--set", f"command={TAP}"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "shop.orders" in shown.output
    assert "FULL_TABLE" in shown.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"]).output)
    assert found == [
        {"stream": name, "keys": ["id"], "replication": "FULL_TABLE", "fields": ["id", "secret"]}
        for name in ("users", "shop.orders")
    ]
    wrong = CliRunner().invoke(app, ["connectors", "describe", "singer", "--set", "command=/no-such-tap"])
    assert wrong.exit_code != 0
    nothing = CliRunner().invoke(app, ["connectors", "describe", "file", "--set", "path=x"])
    assert "has nothing to discover" in str(nothing.exception or nothing.output)
