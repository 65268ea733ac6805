"""The addresses of the embedded stack, as commands find them: nobody else's, and none where nobody answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from conduit_tasks.errors import BrokerUnavailable, ConfigError
from conduit_tasks.redis_client import connection
from conduit_tasks.settings import Settings, forget, settings
from conduit_tasks.stack import redis
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.down import down
from conduit_tasks.stack.layout import Layout, Process, State
from conduit_tasks.stack.processes import StackError, wait_for
from conduit_tasks.stack.up import COMPONENTS, _api_url


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    """A home that commands take for theirs, of which nothing runs."""
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    for name in ("CONDUIT_REDIS_URL", "CONDUIT_AIRFLOW_URL"):
        monkeypatch.delenv(name, raising=False)
    made = Layout(tmp_path)
    made.prepare()
    forget()
    yield made
    forget()


def test_a_stack_that_somebody_else_could_have_named_is_not_asked(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    State(redis_url=redis.url(layout), api_url="http://127.0.0.1:8080").save(layout)
    assert Settings().redis_url == redis.url(layout)
    # Given a socket in a folder that others can write, or that leads elsewhere
    folder = layout.socket.parent
    folder.chmod(0o770)
    with pytest.raises(ConfigError, match="somebody else may listen"):
        Settings()
    folder.rename(layout.home / "moved")
    folder.symlink_to(layout.home / "moved")
    with pytest.raises(ConfigError, match="somebody else may listen"):
        Settings()
    # Then a server that is named otherwise is asked, and a folder that is not there is nobody's
    assert Settings(redis_url="redis://other:6379/0").redis_url == "redis://other:6379/0"
    folder.unlink()
    (layout.home / "theirs").mkdir(mode=0o777)
    State(redis_url=f"unix://{layout.home}/theirs/redis.sock").save(layout)
    assert Settings().redis_url.endswith("theirs/redis.sock")
    State(redis_url=redis.url(layout), api_url="http://127.0.0.1:8080").save(layout)
    assert Settings().redis_url == redis.url(layout)
    # And given a file that others can write, made, or led elsewhere, then nothing in it is believed
    layout.state_file.chmod(0o620)
    for asks in (Settings, lambda: State.load(layout), lambda: Api.of(layout)):
        with pytest.raises(ConfigError, match="not a file that only this user writes"):
            asks()
    layout.state_file.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="not a file that only this user writes"):
        Settings()


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_an_api_that_ended_comes_back_where_parts_that_run_look_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler would go on with the old address, and each of its tasks would fail."""
    monkeypatch.setenv("CONDUIT_API_PORT", "0")
    url = "http://127.0.0.1:1"
    runs, ended = Process(os.getpid(), psutil.Process().create_time()), Process(os.getpid(), 0.0)
    assert _api_url(State(api_url=url, processes={**dict.fromkeys(COMPONENTS, ended), name: runs})) == url
    assert _api_url(State(api_url=url, processes=dict.fromkeys(COMPONENTS, ended))) != url


def test_an_address_that_another_program_has_by_now_is_not_taken_for_that_of_an_api_that_ended() -> None:
    runs, ended = Process(os.getpid(), psutil.Process().create_time()), Process(os.getpid(), 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        left = {**dict.fromkeys(COMPONENTS, ended), "scheduler": runs}
        with pytest.raises(StackError, match=r"where scheduler look for it: end that .*`conduit stack down`"):
            _api_url(State(api_url=url, processes=left))
        # While the api-server runs it is the one that listens
        assert _api_url(State(api_url=url, processes={**left, "api-server": runs})) == url


def test_an_answer_is_not_that_of_a_process_that_has_ended(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="api-server ended while starting"):
        wait_for("api-server", lambda: True, alive=lambda: False, timeout=60, log=tmp_path / "log")


def test_what_was_stopped_leaves_no_address_but_that_of_its_redis(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = connection.options()
    monkeypatch.setattr(connection, "options", lambda **_: {**usual, "retry": Retry(NoBackoff(), 0)})
    State(redis.url(layout), "http://127.0.0.1:1", gateway_url="http://127.0.0.1:2").save(layout)
    assert down(layout, lambda _: None)
    # Then Airflow's password goes to nobody who took its port, and the error says how to begin again
    with pytest.raises(ConfigError, match="conduit stack up"):
        Api.of(layout)
    assert not State.load(layout).gateway_url
    # And no other Redis is taken for the stack's
    with pytest.raises(BrokerUnavailable, match=r"embedded stack's, which does not run.*conduit stack up"):
        connection.connect(settings())
    with pytest.raises(BrokerUnavailable, match="CONDUIT_REDIS_URL is right"):
        connection.connect(Settings(redis_url=f"unix://{layout.home}/other.sock"))
