"""Amazon's services, and servers like them, for `s3` and `sqs`: options, the chain of credentials, clients with limits
of time, and which errors may pass.

Credentials come from the options, or else from the usual chain: environment, shared files and `profile`, the role of
the container or machine. They are never kept in a position, a state or a message.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from conduit_tasks.connectors.base import Option
from conduit_tasks.errors import ConfigError
from conduit_tasks.urls import check_no_login

OPTIONS = (
    Option("region", "the service's region; default: of the environment or the profile", conduit="aws.region"),
    Option("endpoint-url", "another server that speaks the same protocol (MinIO, LocalStack, moto)"),
    Option("profile", "a profile of the shared configuration files"),
    Option("access-key-id", "instead of the usual chain of credentials", conduit="aws.accessKeyId"),
    Option("secret-access-key", "belongs to access-key-id", secret=True, conduit="aws.secretAccessKey"),
    Option("session-token", "belongs to access-key-id, where it is a temporary one", secret=True),
)

CONNECT_TIMEOUT, READ_TIMEOUT = 5, 60
"""Timeouts in seconds. The longest poll waits 20."""
RETRIES = 4
"""Attempts of one call, which the client itself repeats after throttling and lost connections, seconds apart."""

CALL = RETRIES * (CONNECT_TIMEOUT + READ_TIMEOUT) + 20.0
"""Limit of the seconds that one call takes, with its attempts and the pauses between them."""

_LOCK = threading.Lock()
_TRANSIENT = frozenset(
    {"RequestTimeout", "Throttling", "ThrottlingException", "RequestThrottled", "SlowDown", "ServiceUnavailable"}
)


def check(settings: Mapping[str, str], name: str) -> None:
    """Raises ConfigError if the options do not go together."""
    if ("access-key-id" in settings) != ("secret-access-key" in settings):
        raise ConfigError(f"{name}: options 'access-key-id' and 'secret-access-key' are given together, or neither")
    if "session-token" in settings and "access-key-id" not in settings:
        raise ConfigError(f"{name}: option 'session-token' belongs to 'access-key-id', which is missing")
    for option in ("access-key-id", "secret-access-key", "session-token"):
        # They become headers; the client prints a value that cannot be one.
        if not all("!" <= character <= "~" for character in settings.get(option, "")):
            raise ConfigError(
                f"{name}: option '{option}' holds a blank, a line break or what is no ASCII; leave it out"
            )
    if "endpoint-url" in settings:
        check_address(settings["endpoint-url"], f"{name}: option 'endpoint-url'")


def check_address(url: str, option: str) -> None:
    """Raises ConfigError if it is no address, or holds a user or a password: messages show it."""
    check_no_login(url, option, "use 'access-key-id' and 'secret-access-key'")
    if not re.match("https?://[^/]", url):
        raise ConfigError(f"{option} must begin with http:// or https:// and name a host")


def client(service: str, settings: Mapping[str, str], connections: int = 10, *, timeout: float | None = None) -> Any:
    """Returns a new client; the caller closes it. Raises ConfigError if the library, region or profile is missing.

    `timeout`: seconds for an answer. With it the client makes one attempt only: the caller retries, and a request that
    it gave up must not be sent again without its knowledge.
    """
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ConfigError(
            f"the connector {service} needs boto3, which is not installed: pip install 'conduit-tasks[aws]'"
        ) from error
    config = Config(
        connect_timeout=CONNECT_TIMEOUT if timeout is None else min(CONNECT_TIMEOUT, timeout),
        read_timeout=READ_TIMEOUT if timeout is None else timeout,
        retries={"total_max_attempts": RETRIES if timeout is None else 1, "mode": "standard"},
        max_pool_connections=connections,
        user_agent_extra="conduit-tasks",
    )
    try:
        # A session is not thread-safe; the clients that it makes are.
        with _LOCK:
            return _session(settings.get("profile")).client(
                service,
                region_name=settings.get("region"),
                endpoint_url=settings.get("endpoint-url"),
                aws_access_key_id=settings.get("access-key-id"),
                aws_secret_access_key=settings.get("secret-access-key"),
                aws_session_token=settings.get("session-token"),
                config=config,
            )
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"{service}: {error}; check the options 'region', 'profile' and 'endpoint-url'") from error


@lru_cache(maxsize=8)
def _session(profile: str | None) -> Any:
    """Returns a cached session, as making one reads half a megabyte of descriptions."""
    import boto3

    return boto3.session.Session(profile_name=profile)


def code(error: Exception) -> str:
    """Returns the service's code of an error, without the prefix that SQS puts before some; empty without an answer."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", "")).removeprefix("AWS.SimpleQueueService.")


def status(error: Exception) -> int | None:
    """Returns the answer's HTTP status; None without an answer."""
    response = getattr(error, "response", None) or {}
    found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None if found is None else int(found)


def transient(error: Exception) -> bool:
    """Returns whether a retry may help (SEMANTICS T6): after no answer, throttling, an error of the server."""
    found = status(error)
    return found is None or found >= 500 or found in (408, 429) or code(error) in _TRANSIENT


def explain(what: str, error: Exception) -> str:
    """Returns a message with the failure, its reason, and what to do."""
    found = code(error)
    todo = "it is tried again"
    if not transient(error):
        todo = "check its name, the region and the rights of the credentials"
    said = str(error)
    return f"{what}: {said}; {todo}" if not found or found in said else f"{what}: {found}: {said}; {todo}"


def errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that calls of a client raise."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


class Failing:
    """Context that turns errors of a client's calls into `kind`, with `what` in the message; others, such as
    ConfigError, pass unchanged."""

    def __init__(self, kind: type[Exception], what: str) -> None:
        self._kind, self._what = kind, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and "botocore" in type(error).__module__:
            raise self._kind(explain(self._what, error)) from error
