"""The address of a Spark Connect server: `sc://host:port/;name=value`, as Spark writes it, with the token kept apart.

The token is never in an address that is handed on, so it is in no command line: it goes by the environment, where
Spark itself looks for it. This module is light; Airflow's processes use it.
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
"""Environment variable of Spark's own that holds the address."""
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of Spark's variable
PORT = 15002
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """Where a server listens. `params` without the token: `use_ssl`, `user_id`, headers a gateway wants."""

    host: str
    port: int = PORT
    params: dict[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises ConfigError where it is no such address."""
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
        """`host:port`, as gRPC wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """Without the token."""
        rest = ";".join(f"{name}={quote(value)}" for name, value in sorted(self.params.items()))
        return f"sc://{self.target}" + (f"/;{rest}" if rest else "")

    def environment(self) -> dict[str, str]:
        """What a process needs that is to work there."""
        return {REMOTE: str(self), **({TOKEN: self.token} if self.token else {})}

    def listens(self, seconds: float = 2.0) -> bool:
        """Whether somebody takes connections there."""
        try:
            socket.create_connection((self.host, self.port), seconds).close()
        except OSError:
            return False
        return True

    def channel(self, user: str, session: str) -> DefaultChannelBuilder:
        """How Spark's client speaks with it. With `use_ssl=false` the token goes over the wire as it is: for networks
        that only the stack's own parts are on. By itself Spark's client would insist on TLS."""
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
