"""The Redis that is verify's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import redis

from conduit_tasks.verify import server
from conduit_tasks.verify.live import live
from conduit_tasks.verify.server import own_redis
from tests.waiting import until


@pytest.mark.slow
def test_its_log_does_not_grow_with_the_number_of_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_redis(tmp_path) as url:
        # Given a log that many seeds have made long
        client = redis.Redis.from_url(url)
        client.set("much", b"x" * (8 << 20))
        monkeypatch.setattr(server, "LOG", 4 << 20)
        # Processes that died in a seed leave coroutines behind.
        monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
        # When the next one is run
        assert live(1, 4, tmp_path, url).ok
        # Then it is short again
        until(lambda: (tmp_path / "appendonly.aof").stat().st_size <= 4 << 20)
        client.close()
