"""Peer of the `http` connector: the URL, its certificates, and the options of our credentials."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

from yarl import URL

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option
from conduit_tasks.connectors.http import certificates, oauth2
from conduit_tasks.connectors.http.link_local import check_host
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings as installation

PEER = (
    Option("auth.bearer", "token of an Authorization: Bearer header", secret=True),
    Option("auth.basic.username", "user of HTTP basic authentication"),
    Option("auth.basic.password", "its password", secret=True),
    *oauth2.OPTIONS,
    Option("tls.verify", "check the server's certificate", default="true"),
    Option("tls.ca-file", "certificates to trust, PEM"),
    Option("tls.cert-file", "certificate of ours, PEM"),
    Option("tls.key-file", "its key, PEM"),
    Option("allow-link-local", "allow link-local and cloud metadata addresses", default="false"),
)


def guarded(settings: Mapping[str, str], url: URL) -> bool:
    """Returns whether link-local and metadata addresses are refused. Raises ConfigError if `url` names one, or if the
    options of certificates do not go together."""
    if "tls.key-file" in settings and "tls.cert-file" not in settings:
        raise ConfigError("http: option 'tls.key-file' needs 'tls.cert-file'")
    options.boolean(settings, "tls.verify")
    if options.boolean(settings, "allow-link-local"):
        return False
    check_host(url.host or "", "http: option 'url'")
    return True


def tls_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Returns the TLS context; not to be changed. Raises ConfigError if a file cannot be read."""
    ca, cert, key = (_path(settings.get(f"tls.{name}-file")) for name in ("ca", "cert", "key"))
    try:
        return certificates.trusting(ca, cert, key, verify=options.boolean(settings, "tls.verify"))
    except OSError as error:
        raise ConfigError(f"http: tls.ca-file, tls.cert-file or tls.key-file cannot be read: {error}") from error


def address(text: str) -> URL:
    """Returns the parsed option `url`. Raises ConfigError."""
    try:
        url = URL(text)
    except ValueError:
        # The part of a URL that it cannot parse may be a password.
        raise ConfigError("http: option 'url' is no URL; write https://host/path") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError("http: option 'url' must begin with http:// or https:// and name a host")
    if url.user or url.password:
        raise ConfigError(
            "http: option 'url' must not hold a password; use auth.basic.username and auth.basic.password"
        )
    return url


def quiet() -> None:
    """Limits the client's log to warnings: it logs every request with its whole query, which may hold a key."""
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _path(text: str | None) -> Path | None:
    return Path(installation().path(text)) if text else None
