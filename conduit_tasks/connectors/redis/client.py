"""A client for the `redis` connector's own server, not the broker's: forms of its URL, errors that may pass, entries
with a field given twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.base import Option
from conduit_tasks.errors import BrokerUnavailable, ConfigError, Missing, Unavailable
from conduit_tasks.urls import check_readable

if TYPE_CHECKING:
    from conduit_tasks.errors import ConduitError

URL = Option(
    "url",
    "redis://, rediss:// (TLS), unix://, redis+sentinel://…/service or redis+cluster://…, with user and password",
    required=True,
    secret=True,
    example="redis://localhost",
)


KINDS = re.compile(r"(rediss?|unix|rediss?\+(sentinel|cluster))://\S")


def check_url(settings: Mapping[str, str]) -> None:
    """Raises ConfigError if the URL is no Redis address. The message does not repeat it: it may hold a password."""
    if not KINDS.match(settings["url"]):
        raise ConfigError(f"redis: option 'url' is no Redis address; write {URL.help}")
    check_readable(settings["url"], "redis: option 'url'")


def opened(url: str) -> Any:
    """Returns a connected client whose answers are bytes. Raises ConfigError, Unavailable; neither shows the
    password."""
    from conduit_tasks.redis_client.connection import connect
    from conduit_tasks.settings import Settings

    try:
        return connect(Settings(redis_url=url), raw=True, retries=2)
    except (BrokerUnavailable, ConfigError) as error:
        said = str(error).replace("CONDUIT_REDIS_URL", "option 'url'")
        raise (ConfigError if isinstance(error, ConfigError) else Unavailable)(f"redis: {said}") from None


def entries_as_pairs(client: Any) -> Any:
    """Makes a client answer an entry of a stream as (id, [(field, value), …]), as it was written: a field may occur
    more than once, and redis-py's dict keeps only the last."""
    from redis import RedisCluster

    if isinstance(client, RedisCluster):
        of_node = client.get_redis_connection
        client.get_redis_connection = lambda node: _with_pairs(of_node(node))  # type: ignore[method-assign]
        return client
    return _with_pairs(client)


def _with_pairs(client: Any) -> Any:
    client.set_response_callback("XREADGROUP", lambda answer, **_: [(s, _entries(e)) for s, e in answer or ()])
    client.set_response_callback("XCLAIM", lambda answer, **_: _entries(answer))
    return client


def _entries(answer: list[Any]) -> list[tuple[bytes | None, list[tuple[bytes, bytes]]]]:
    """Returns entries as pairs; one that is gone has no fields, or (from an older server) no id either."""
    return [(None, []) if e is None else (e[0], list(zip(*[iter(e[1] or ())] * 2, strict=True))) for e in answer]


@contextmanager
def asking(kind: type[ConduitError], what: str) -> Iterator[None]:
    """Turns errors of the client into Unavailable if they may recover, into Missing if a stream or its group is gone,
    otherwise into `kind`."""
    from redis.exceptions import AuthenticationError, RedisError, ResponseError

    try:
        yield
    except (ResponseError, AuthenticationError) as error:
        if str(error).startswith(("OOM", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MISCONF")):
            raise Unavailable(f"redis: the server {what}: {error}") from None
        if str(error).startswith("NOGROUP") or "no such key" in str(error):
            raise Missing(f"redis: the server {what}: the stream or its group is removed") from None
        raise kind(f"redis: the server {what}: {error}") from None
    except (RedisError, OSError) as error:
        raise Unavailable(f"redis: the server {what}: {type(error).__name__}: {error}") from None
