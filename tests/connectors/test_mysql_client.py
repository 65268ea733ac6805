"""Connections to MySQL and MariaDB."""

from __future__ import annotations

import ssl
from typing import Any

import pymysql
import pytest

from conduit_tasks.connectors.mysql import client
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
