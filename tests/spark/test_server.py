"""How the watch over a Spark Connect server tells one that answers from one that stands still."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from conduit_tasks.spark import server
from conduit_tasks.spark.remote import Address


def test_any_answer_is_one_and_silence_is_none() -> None:
    # Given a server that knows nothing of what it is asked
    with ThreadPoolExecutor(1) as pool:
        answering = grpc.server(pool)
        port = answering.add_insecure_port("127.0.0.1:0")
        answering.start()
        assert server.answers(Address("127.0.0.1", port), 60.0)
        answering.stop(None).wait(60)
    # And one that takes connections and says nothing, as the kernel does for a process that stands still
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not server.answers(Address("127.0.0.1", silent.getsockname()[1]), 0.5)


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("0.0.0.0", "localhost:7"),
        ("::", "localhost:7"),
        ("spark.example", "spark.example:7"),
        ("fd00::1", "[fd00::1]:7"),
    ],
)
def test_a_server_is_watched_where_it_listens(host: str, target: str) -> None:
    address = server._reached(host, 7)
    assert address.target == target
    assert str(address) == f"sc://{target}"


def test_a_watch_of_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        server.main(["--silent", "0"])
    assert "--silent: at least 1 second" in capsys.readouterr().err
