"""Redis connections, made only here: forms of the URL, limits of time, errors without a password; and the check that a
server keeps the data it is given (T1).

Every option has its reason beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any
from urllib.parse import unquote, urlsplit

from redis import Redis, RedisCluster
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import ClusterNode
from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from conduit_tasks.errors import BrokerFull, BrokerUnavailable, ConfigError, NotDurable
from conduit_tasks.settings import Settings, settings
from conduit_tasks.urls import check_readable, readable

Client = Redis | RedisCluster

FLOOR = (6, 2)
"""Oldest Redis version that has the commands the scripts use."""
UNNAMED: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}  # redis-py 6, which Celery needs
)
"""Options without which redis-py would read its version from the disk at each connection, and tell it with two
commands."""
_VARIABLE = "CONDUIT_REDIS_URL"
_NAMED = re.compile(
    r"^(?P<tls>rediss?)\+(?P<kind>sentinel|cluster)://(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<hosts>[^/?@]+)(?:/(?P<service>[^/?]*))?(?:/(?P<db>\d+))?$"
)
_TRANSIENT = (RedisError, RedisClusterException, OSError)


def options(*, raw: bool = False, retries: int = 6) -> dict[str, Any]:
    """Returns the options common to all kinds of connection. `raw`: answers are bytes, for the events of a gateway
    source."""
    return {
        # A host that is down should be noticed within seconds; the retries below cover a connection lost in passing.
        "socket_connect_timeout": 2.0,
        # Scripts take milliseconds; a reply that is this late counts as lost, and the idempotent script is sent again.
        "socket_timeout": 5.0,
        # A restart of Redis that loads its append-only file answers LOADING for some seconds: 0.1, 0.2 … 2 s apart.
        # OSError: clients before 8 raise a refused connection as it is, and would not try again.
        "retry": Retry(
            ExponentialWithJitterBackoff(base=0.1, cap=2.0),
            retries=retries,
            supported_errors=(RedisConnectionError, RedisTimeoutError, OSError),
        ),
        # Load balancers drop idle connections silently; a PING before use notices that.
        "health_check_interval": 30,
        # Nothing here needs RESP3's pushes or maps; RESP2 spares the HELLO handshake that some proxies refuse.
        "protocol": 2,
        # Keys, ids and state are text; only the events that a gateway took in are bytes.
        "decode_responses": not raw,
        "client_name": "conduit-tasks",
        **UNNAMED,
    }


def connect(installation: Settings, *, raw: bool = False, retries: int = 6) -> Client:
    """Returns a connected client for `installation.redis_url`. `raw` and `retries` as in `options`.

    `redis://`, `rediss://` (TLS), `unix://`; `redis+sentinel://[user:password@]host:port,host:port/service[/db]` and
    `redis+cluster://[user:password@]host:port,host:port` (`rediss+…` with TLS). Raises ConfigError on any other URL,
    and BrokerUnavailable if no server answers; neither shows the password.
    """
    url = installation.redis_url
    check_readable(url, _VARIABLE)
    try:
        client = _client(url, options(raw=raw, retries=retries))
    except (ValueError, TypeError) as e:
        raise ConfigError(f"{_VARIABLE} is not a Redis address ({address(url)}): {type(e).__name__}") from None
    except _TRANSIENT as e:
        raise _unavailable(address(url), e) from e
    if isinstance(client, Redis):
        # A cluster's client has connected already. This one is made to connect and log in here; its first command sends
        # a PING.
        with reaching(client, address(url)):
            client.connection_pool.release(client.connection_pool.get_connection())
    return client


def _client(url: str, options: dict[str, Any]) -> Client:
    named = _NAMED.match(url)
    if named is None:
        if "+" in url.partition("://")[0]:
            raise ValueError("unknown scheme")
        return Redis.from_url(url, **options)
    hosts = []
    for item in named["hosts"].split(","):
        host, _, port = item.rpartition(":")
        hosts.append((host or port, int(port) if host else (26379 if named["kind"] == "sentinel" else 6379)))
    login: dict[str, Any] = {"username": unquote(named["user"] or "") or None}
    login["password"] = unquote(named["password"]) if named["password"] else None
    login["ssl"] = named["tls"] == "rediss"
    if named["kind"] == "cluster":
        nodes = [ClusterNode(host, port) for host, port in hosts]
        return RedisCluster(startup_nodes=nodes, **options, **login)
    if not named["service"]:
        raise ValueError("no service")
    # Sentinels get the socket options only: their users and passwords are not those of the server.
    sentinel = Sentinel(hosts, **options, **login, db=int(named["db"] or 0))
    return sentinel.master_for(named["service"])


def address(url: str) -> str:
    """Returns the URL as messages may show it: without user, password and query; "no address" if it cannot be read."""
    if not readable(url):
        return "no address"
    named = _NAMED.match(url)
    if named:
        return f"{named['tls']}+{named['kind']}://{named['hosts']}" + (
            f"/{named['service']}" if named["service"] else ""
        )
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else "no address"


def describe(client: Client) -> str:
    """Returns the address that a client is connected to, without secrets."""
    if isinstance(client, RedisCluster):
        return ",".join(f"{n.host}:{n.port}" for n in client.get_nodes())
    kwargs = client.connection_pool.connection_kwargs
    service = getattr(client.connection_pool, "service_name", None)
    return str(kwargs.get("path") or service or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}")


@contextmanager
def reaching(client: Client, where: str = "") -> Iterator[None]:
    """Turns the client's errors into BrokerUnavailable, which names the server and never its password."""
    try:
        yield
    except _TRANSIENT as e:
        raise _unavailable(where or describe(client), e) from e


def _unavailable(where: str, error: Exception) -> BrokerUnavailable:
    if isinstance(error, AuthenticationError):
        return BrokerUnavailable(f"Redis at {where} refuses the login: check user and password in {_VARIABLE}")
    if "command not allowed when used memory > 'maxmemory'" in str(error):
        return BrokerFull(
            f"Redis at {where} has reached its maxmemory and takes nothing new; what is under way goes on and frees "
            "memory. Raise maxmemory, or keep less: a shorter `spool.retention`, dead letters redriven or purged"
        )
    advice = f"Check that it runs and that {_VARIABLE} is right"
    try:
        own = _address_of_stack()
        if own and own.endswith(where):
            advice = "It is the embedded stack's, which does not run, or is starting: `conduit stack up`"
    except (ConfigError, OSError, ValueError):
        pass  # Whatever is wrong there is not what this error is about.
    return BrokerUnavailable(f"Redis at {where} does not serve: {error}. {advice}")


def _address_of_stack() -> str:
    own = settings().redis_of_stack()
    return address(own) if own else ""


@dataclass(frozen=True)
class Durability:
    """Durability settings that the server reports; `problems` are the reasons to refuse it, empty if there are none."""

    version: str
    append_only: bool
    append_fsync: str | None
    """`always`, `everysec` or `no`; None if it was not asked for or the server does not say."""
    eviction: str
    """The server's `maxmemory-policy`."""
    max_memory: int
    mode: str
    problems: tuple[str, ...] = ()


def check_durability(client: Client, mode: str = "check") -> Durability:
    """Asks the server (`INFO`, `CONFIG GET appendfsync`) and refuses one that would lose or evict data.

    `declared`: the user vouches for `appendfsync` if a managed server refuses CONFIG. `unsafe`: nothing is refused,
    the report still lists the problems. Raises NotDurable, ConfigError (unknown mode), BrokerUnavailable.
    """
    if mode not in ("check", "declared", "unsafe"):
        raise ConfigError(f"CONDUIT_REDIS_DURABILITY is {mode!r}; it takes check, declared or unsafe")
    with reaching(client):
        info = _info(client)
        if int(info.get("loading", 0)):
            # While it loads its append-only file, it reports that it keeps none. PING is refused until it has loaded.
            client.ping()
            info = _info(client)
    version, policy = str(info["redis_version"]), str(info.get("maxmemory_policy", "noeviction"))
    problems = []
    if tuple(int(n) for n in version.split(".")[:2]) < FLOOR:
        problems.append(f"it is Redis {version}: use 6.2 or later")
    append_only = bool(int(info.get("aof_enabled", 0)))
    if not append_only:
        problems.append("it keeps no append-only file: set `appendonly yes`")
    if policy != "noeviction":
        problems.append(f"it evicts keys (maxmemory-policy {policy}): set `maxmemory-policy noeviction`")
    fsync = None
    if append_only and mode != "declared":
        with reaching(client):
            fsync = _append_fsync(client)
        if fsync is None:
            problems.append(
                "it does not tell its appendfsync: if that is `always` or `everysec`, set "
                "CONDUIT_REDIS_DURABILITY=declared"
            )
        elif fsync == "no":
            problems.append("it leaves fsync to the system (appendfsync no): set `appendfsync everysec` or `always`")
    report = Durability(version, append_only, fsync, policy, int(info.get("maxmemory", 0)), mode, tuple(problems))
    if problems and mode != "unsafe":
        raise NotDurable(
            f"Redis at {describe(client)} would lose data: {'; '.join(problems)}. "
            "To run on it all the same, set CONDUIT_REDIS_DURABILITY=unsafe"
        )
    return report


def memory(client: Client, key: str) -> tuple[int, int]:
    """Returns the bytes used by the server that holds `key`, and its maxmemory; 0: it has no limit."""
    with reaching(client):
        if isinstance(client, RedisCluster):
            answer: Any = client.info("memory", target_nodes=client.get_node_from_key(key))
            if "used_memory" not in answer:
                answer = next(iter(answer.values()))
        else:
            answer = client.info("memory")
    return int(answer["used_memory"]), int(answer.get("maxmemory", 0))


def _info(client: Client) -> dict[str, Any]:
    """Returns INFO of the server; of a cluster that of its first node, as all are configured alike."""
    answer: Any = client.info()
    if "redis_version" not in answer and all(isinstance(v, dict) for v in answer.values()):
        answer = next(iter(answer.values()))
    return dict(answer)


def _append_fsync(client: Client) -> str | None:
    try:
        answer: Any = client.config_get("appendfsync")
    except (ResponseError, NoPermissionError):
        return None
    return answer.get("appendfsync") if isinstance(answer, dict) else None
