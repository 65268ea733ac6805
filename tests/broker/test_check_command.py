"""`conduit broker check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from conduit_tasks.broker.broker import Broker
from conduit_tasks.cli.broker import app
from conduit_tasks.settings import settings
from tests.redis_server import RedisServer


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str, str]]]:
    def run(url: str, durability: str = "check") -> tuple[int, str, str]:
        monkeypatch.setenv("CONDUIT_REDIS_URL", url)
        monkeypatch.setenv("CONDUIT_REDIS_DURABILITY", durability)
        settings.cache_clear()
        result = CliRunner().invoke(app, ["check"])
        return result.exit_code, result.stdout, result.stderr

    yield run
    settings.cache_clear()


@pytest.mark.proves("T1")
def test_a_fit_server_is_described_with_the_pipelines_it_holds(
    check: Callable[..., tuple[int, str, str]], broker: Broker, redis_server: RedisServer
) -> None:
    code, out, err = check(redis_server.url)
    assert (code, err) == (0, "")
    for said in ("Redis 6.2", "everysec", "noeviction", "ms", "pipeline p", "schema 1, running"):
        assert said in out


@pytest.mark.proves("T1")
def test_findings_exit_1_and_opting_out_by_name_exits_0(
    check: Callable[..., tuple[int, str, str]], own_redis: Callable[..., RedisServer]
) -> None:
    url = own_redis("--appendonly", "no").url
    code, out, err = check(url)
    assert code == 1
    assert "append-only file  off" in out
    assert "appendonly yes" in err
    assert check(url, "unsafe")[0] == 0


def test_state_of_a_newer_version_is_a_finding(
    check: Callable[..., tuple[int, str, str]], broker: Broker, redis_server: RedisServer
) -> None:
    broker.redis.set(broker.keys.schema, "99")
    code, _, err = check(redis_server.url)
    assert code == 1
    assert "pipeline p has schema 99" in err


def test_what_cannot_be_asked_exits_2_without_the_password(check: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = check("http://user:s3cret@host:1")
    assert code == 2
    assert "CONDUIT_REDIS_URL" in err
    assert "s3cret" not in out + err
