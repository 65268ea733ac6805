"""Ports that servers are given before they begin."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from conduit_tasks.stack import ports
from conduit_tasks.stack.ports import free_port


def test_a_wanted_port_is_taken_if_it_is_free_and_another_one_otherwise() -> None:
    wanted = free_port()
    assert free_port(wanted) == wanted
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", wanted))
        taken.listen()
        assert free_port(wanted) != wanted


def test_a_port_is_none_that_the_kernel_gives_to_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "range"
    given.write_text("30000\t60999\n")
    monkeypatch.setattr(ports, "_RANGE", given)
    assert all(ports.FIRST <= free_port(beside=1000) < 29_000 for _ in range(50))
    # And where the kernel gives nearly all of them, there is one still
    given.write_text("1024\t65535\n")
    assert free_port() < 50_000
