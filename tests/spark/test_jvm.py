"""The JVM that a driver starts: a program stands in for it that does what Spark's gateway does at its start and end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.errors import SparkLost, Terminated
from conduit_tasks.spark import ended, jvm

LISTEN = """
import os, sys
said = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(said + ".side", "wb") as file:
    file.write((4711).to_bytes(4, "big") + (6).to_bytes(4, "big") + b"secret")
os.rename(said + ".side", said)
sys.stdin.read()
open({over!r}, "w").write(said)
"""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], jvm._Jvm]:
    """Begins one that runs this program."""
    monkeypatch.setenv(jvm.SAID, str(tmp_path / "said"))
    monkeypatch.setattr(ended, "_halting", ended._Halting())
    monkeypatch.setattr(jvm, "_jvm", None)
    monkeypatch.setattr(jvm, "_command", None)
    monkeypatch.setattr(jvm.atexit, "register", lambda *_: None)
    monkeypatch.setattr(jvm, "_quiet", lambda: None)  # this process goes on
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.setenv(name, "")

    def begin(program: str) -> jvm._Jvm:
        jvm.prepare([sys.executable, "-c", program, jvm.SHELL])
        assert jvm.prepared()
        jvm.begin()
        assert not jvm.prepared()
        assert jvm._jvm is not None
        return jvm._jvm

    return begin


def test_pyspark_is_told_where_it_listens_and_it_ends_with_its_standard_input(
    start: Callable[[str], jvm._Jvm], tmp_path: Path
) -> None:
    begun = start(LISTEN.format(over=str(tmp_path / "over")))
    jvm.connect()
    assert (os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]) == ("4711", "secret")
    assert not begun.said.exists(), "nothing is left of the secret"
    assert begun.process.poll() is None
    jvm._end(begun)
    assert begun.process.returncode == 0
    assert (tmp_path / "over").read_text() == str(begun.said)
    jvm.connect()  # a second time there is nothing to wait for


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_one_that_ends_before_it_listens_ends_the_driver_with_its_code(
    start: Callable[[str], jvm._Jvm], end: str, code: int
) -> None:
    begun = start(f"import os, sys; {end}")
    with pytest.raises(SystemExit) as raised:
        jvm.connect()
    assert raised.value.code == code
    jvm._end(begun)


def test_one_that_never_listens_is_not_waited_for_for_good(
    start: Callable[[str], jvm._Jvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "START", 0.1)
    begun = start("import sys; sys.stdin.read()")
    with pytest.raises(SparkLost):
        jvm.connect()
    jvm._end(begun)


def test_a_driver_that_is_asked_to_end_does_not_wait_for_it(start: Callable[[str], jvm._Jvm]) -> None:
    begun = start("import sys; sys.stdin.read()")
    ended._halting.thread = threading.Thread(target=lambda: None)
    ended._halting.thread.start()
    with pytest.raises(Terminated):
        jvm.connect()
    # And nobody waits for the end of one that nobody has used
    jvm._end(begun)
    assert begun.process.returncode == -signal.SIGKILL


def test_one_that_was_prepared_is_started_by_the_first_who_needs_it(
    start: Callable[[str], jvm._Jvm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[jvm._Jvm] = []
    monkeypatch.setattr(jvm.atexit, "register", lambda _, one: begun.append(one))
    program = LISTEN.format(over=str(tmp_path / "over"))
    jvm.prepare([sys.executable, "-c", program, jvm.SHELL])
    assert begun == []
    jvm.connect()
    assert os.environ["PYSPARK_GATEWAY_PORT"] == "4711"
    assert not jvm.prepared()
    jvm._end(begun[0])
    assert begun[0].process.returncode == 0


def test_a_process_that_began_none_is_left_to_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "_jvm", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    jvm.connect()
    assert "PYSPARK_GATEWAY_PORT" not in os.environ
