"""Connections to MySQL and MariaDB."""

from __future__ import annotations

import ssl
import sys
from typing import Any

import pymysql
import pytest

from conduit_tasks.connectors.mysql import client
from conduit_tasks.errors import ConfigError
from tests.connectors.mariadb_database import MyDatabase


def test_connections_that_check_no_certificate_read_those_of_the_machine_once(
    mydb: MyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a look at how often the machine's certificates are read
    read: list[dict[str, Any]] = []
    make = ssl.create_default_context

    def reading(**given: Any) -> ssl.SSLContext:
        read.append(given)
        return make(**given)

    monkeypatch.setattr(ssl, "create_default_context", reading)
    monkeypatch.setattr(client._connection_class(), "unchecked", None)
    # When three connections are opened by a URL that says nothing of TLS
    for _ in range(3):
        client.server(mydb.url).connect(5).close()
    # Then they were read once
    assert len(read) == 1
    assert client._connection_class().unchecked.verify_mode is ssl.CERT_NONE
    # And whoever checks certificates has a context of its own, and no connection to a server without TLS
    for number in (2, 3):
        with pytest.raises(pymysql.Error, match="SSL"):
            client.server(f"{mydb.url}?ssl_verify_cert=true").connect(5)
        assert len(read) == number


def test_without_pymysql_whoever_connects_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    server = client.server("mysql://root@127.0.0.1/d")
    client._connection_class.cache_clear()
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match=r"pip install 'conduit-tasks\[mysql\]'"):
        server.connect(5)
