"""Durability of an answer: what Redis must do before a producer is told that its event is stored (SEMANTICS T1, T2).

| mode | meaning of an answer |
|---|---|
| `always` | Redis wrote and fsynced its append-only file before it replied (`appendfsync always`) |
| `waitaof` | the gateway waited for that fsync (`WAITAOF`, Redis 7.2) |
| `declared` | as `always`, declared by the user because a managed server refuses CONFIG |
| `everysec` | opted out by name: the last second is lost with the machine, and with Redis if its disk is slow |
"""

from __future__ import annotations

from typing import Any, Literal

from redis import RedisCluster
from redis.exceptions import NoPermissionError, ResponseError

from conduit_tasks.errors import NotDurable
from conduit_tasks.redis_client.connection import Client, Durability, check_durability, describe, reaching

Fsync = Literal["check", "always", "everysec"]
"""Setting of the user (`--fsync`): ask the server; it is `always`; a second may be lost."""
Mode = Literal["always", "waitaof", "declared", "everysec"]
WAITAOF_SINCE = (7, 2)
_REWRITE = "no-appendfsync-on-rewrite"


def check_answers(client: Client, redis_durability: str, fsync: Fsync) -> Mode:
    """Returns the mode in which this server is used. Raises NotDurable, which says what to set, ConfigError,
    BrokerUnavailable."""
    report = check_durability(client, redis_durability)
    if fsync == "everysec":
        return "everysec"
    if report.append_only and report.append_fsync == "always" and not _pauses(client):
        return "always"
    if report.append_only and _has_waitaof(client, report):
        return "waitaof"
    if fsync == "always" and report.append_only and report.append_fsync is None:
        return "declared"
    found = f"appendfsync {report.append_fsync or 'not told'}" if report.append_only else "no append-only file"
    if report.append_fsync == "always":
        found += f", but {_REWRITE} yes, which leaves it out while the file is rewritten"
    raise NotDurable(
        f"Redis at {describe(client)} (version {report.version}, {found}) would answer before an event is on disk. "
        f"Set `appendfsync always` (CONFIG SET appendfsync always, and in its configuration file) and `{_REWRITE} no`, "
        "or use Redis 7.2 or later, which has WAITAOF. Where a managed server does not tell: `--fsync always` declares "
        "it. To lose up to a second of answered events with the machine: `--fsync everysec`"
    )


def _pauses(client: Client) -> bool:
    """Returns whether Redis leaves out fsync while it rewrites the append-only file, even with `always`."""
    try:
        with reaching(client):
            answer: Any = client.config_get(_REWRITE)
    except (ResponseError, NoPermissionError):
        return False
    return isinstance(answer, dict) and answer.get(_REWRITE) == "yes"


def _has_waitaof(client: Client, report: Durability) -> bool:
    # A cluster client's pipeline does not promise that two commands use one connection.
    version = tuple(int(n) for n in report.version.split(".")[:2])
    return version >= WAITAOF_SINCE and not isinstance(client, RedisCluster)
