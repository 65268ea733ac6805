"""What a Redis server was asked, and what it holds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis


def state(client: Any) -> dict[str, int]:
    """Bytes per key of all pipelines (MEMORY USAGE, every element looked at)."""
    return {key: client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(match="{conduit:*", count=1000)}


def calls(client: redis.Redis) -> Counter[str]:
    """Commands so far by name, those that scripts call included (INFO commandstats)."""
    stats: dict[str, Any] = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): int(of["calls"]) for name, of in stats.items()})


@contextmanager
def watched(client: redis.Redis) -> Iterator[Counter[str]]:
    """Counts what clients send while the block runs, by name; what scripts call is left out (MONITOR)."""
    sent: Counter[str] = Counter()
    last = "conduit-bench-last"
    socket = client.connection_pool.connection_kwargs["path"]
    ready = threading.Event()

    def listen() -> None:
        # Minutes may pass without a command, so that the client's own timeouts would end it.
        with redis.Redis(unix_socket_path=socket, socket_timeout=None, decode_responses=True).monitor() as monitor:
            ready.set()
            for command in monitor.listen():
                words = str(command["command"]).split()
                if last in words:
                    return
                if command["client_type"] != "lua":
                    sent[words[0].lower()] += 1

    thread = threading.Thread(target=listen, name="monitor")
    thread.start()
    ready.wait(10)
    try:
        yield sent
    finally:
        client.echo(last)
        thread.join()
