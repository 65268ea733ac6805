"""Settings of a Spark Connect server, secrets among them, reach it in a file that nobody else can read."""

from __future__ import annotations

from typing import Any

from tests.connect_server import SETTINGS, ConnectServer


def test_settings_of_the_users_file_are_in_no_command_line(connect_server: ConnectServer, connected: Any) -> None:
    # Given a server whose user's file has a secret: no command line has it, and its own file is only ours
    assert connect_server.settings_file().exists()
    # Then it has them. What the next server has, and where this file is then, a test in `faults/test_connect` asks
    assert {key: connected.conf.get(key) for key in SETTINGS} == SETTINGS
