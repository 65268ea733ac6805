"""Places where connectors read or write, in a few words for people: a path, a topic, a host. Never a secret."""

from __future__ import annotations

from urllib.parse import urlsplit

from conduit_tasks.connectors.plugins import parse_plugin
from conduit_tasks.topology import Destination, Source

NAMES = ("path", "topic", "topics", "table", "tables", "stream", "streams", "queue", "bucket", "url")
"""Settings that name a place, the most telling first."""


def place(connector: Source | Destination) -> str:
    """Returns the connector's place as its file names it; the plugin's name if no setting names one. Of a URL only
    scheme and host: its path, too, may be a secret."""
    settings = dict(connector.settings)
    for name in NAMES:
        if value := settings.get(name, ""):
            return _host(value) if "://" in value else value
    return parse_plugin(connector.plugin).name


def _host(url: str) -> str:
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
    except ValueError:
        return ""
    return f"{found.scheme.partition('+')[0]}://{host}" + (f":{port}" if port else "")
