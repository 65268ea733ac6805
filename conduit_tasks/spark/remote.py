"""The address of a Spark Connect server: `sc://host:port/;name=value`, as Spark writes it, with the token kept apart.

The token is never in an address that is handed on, so it is in no command line: it is passed in the environment, from
which Spark itself reads it. This module is light; Airflow's processes use it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.connect.client import DefaultChannelBuilder

REMOTE = "SPARK_REMOTE"
"""Spark's own environment variable with the address."""
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of Spark's variable
PORT = 15002
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """Address of a server. `params`, without the token: `use_ssl`, `user_id`, headers that a gateway needs."""

    host: str
    port: int = PORT
    params: dict[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parses an address. Raises ConfigError if it is not valid."""
        where, _, rest = url.partition("/;")
        try:
            parts = urlsplit(where)
            if parts.scheme != "sc" or not parts.hostname or parts.path not in ("", "/"):
                raise ValueError
            pairs = dict(pair.split("=", 1) for pair in rest.split(";") if pair)
            port = parts.port or PORT
        except ValueError:
            raise ConfigError(
                f"{url.partition('/;')[0]!r} is no address of a Spark Connect server: sc://host:port/;use_ssl=true"
            ) from None
        params = {name: unquote(value) for name, value in pairs.items()}
        token = params.pop("token", "")
        return cls("localhost" if parts.hostname in LOOPBACK else parts.hostname, port, params, token)

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def target(self) -> str:
        """`host:port`, as gRPC needs it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """Returns the address without the token."""
        rest = ";".join(f"{name}={quote(value)}" for name, value in sorted(self.params.items()))
        return f"sc://{self.target}" + (f"/;{rest}" if rest else "")

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a process that is to use this server."""
        return {REMOTE: str(self), **({TOKEN: self.token} if self.token else {})}

    def listens(self, seconds: float = 2.0) -> bool:
        """Returns whether a server accepts connections at this address."""
        try:
            socket.create_connection((self.host, self.port), seconds).close()
        except OSError:
            return False
        return True

    def channel(self, user: str, session: str) -> DefaultChannelBuilder:
        """Returns the channel of Spark's client to this server. With `use_ssl=false` the token is sent unencrypted: for
        networks that only the stack's own parts use. By default Spark's client would insist on TLS."""
        from pyspark.sql.connect.client import DefaultChannelBuilder

        token = self.token or os.environ.get(TOKEN, "")
        params = {"user_id": user, **self.params, "session_id": session}
        plain = self.params.get("use_ssl", "").lower() == "false" and not self.loopback
        rest = ";".join(f"{name}={quote(value)}" for name, value in params.items())

        class Channel(DefaultChannelBuilder):
            @property
            def secure(self) -> bool:
                return not plain and super().secure

            def metadata(self) -> Any:
                bearer = [("authorization", f"Bearer {token}")] if plain and token else []
                return [*super().metadata(), *bearer]

        return Channel(f"sc://{self.target}/;{rest}")
