"""Airflow assets of a pipeline's ends: the URI of what a destination writes, made from its settings (docs/assets.md).

Looks at the settings alone, for parsing DAGs; nothing of a login or a query is in a URI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote, urlsplit

from conduit_tasks.settings import settings as installation
from conduit_tasks.topology import Destination, Source

SAFE = "/:@!$&'()*+,;=~-._%"
_TAKEN = ("self", "context")
LONGEST = 1_500
"""Characters that Airflow keeps of a URI."""


def outlets(destination: Destination) -> tuple[str, ...]:
    """Returns the assets that a destination writes: those of its file, else the one that its settings name, if they
    do. One of which each micro-batch is an event (`on-delivered`) is not among them: its runs are none."""
    found = destination.assets if destination.assets is not None else written(destination.plugin, destination.settings)
    return tuple(each for each in found if each != destination.on_delivered.get("asset"))


def written(plugin: str, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the URI of what these settings of a destination name; none if they name nothing."""
    made = _MADE.get(plugin)
    uri = made(settings) if made is not None else ""
    return (uri,) if uri and len(uri) <= LONGEST else ()


def read(plugin: str, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the URIs of what these settings of a source name: one for each topic, table or stream of a list."""
    one, many = _LISTS.get(plugin, ("", ""))
    names = [name.strip() for name in settings.get(many, "").split(",") if name.strip()] if many else []
    if not names:
        return written(plugin, settings)
    # A pattern names no topic or table.
    exact = [name for name in names if name != "*" and not name.startswith("^")]
    return tuple(uri for name in exact for uri in written(plugin, {**settings, one: name}))


def inlets(source: Source) -> tuple[str, ...]:
    """Returns the assets that a source reads: those of its file."""
    return source.assets or ()


def wrong(asset: str) -> str:
    """Says what is wrong with an asset that a file names; "" if nothing is."""
    if not asset.strip() or len(asset) > LONGEST or not asset.isascii() or not asset.isprintable():
        return f"an asset has 1 to {LONGEST} printable ASCII characters"
    if asset in _TAKEN:
        return f"Airflow keeps the name {asset} for itself"
    try:
        parts = urlsplit(asset)
    except ValueError as error:
        return f"it is no URI: {error}"
    if parts.scheme == "airflow":
        return "Airflow keeps the scheme airflow for itself"
    return "an asset is shown to everybody: leave out the login" if "@" in parts.netloc else ""


def _path(text: str) -> str:
    if not text or "{{" in text:
        return ""
    if "://" in text:
        parts = urlsplit(text)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{quote(parts.path, SAFE)}"
    return f"file://{quote(installation().path(text), SAFE)}"


def _bucket(settings: Mapping[str, str]) -> str:
    bucket = settings.get("bucket") or settings.get("aws.bucket", "")
    return f"s3://{bucket}/{quote(settings.get('prefix', ''), SAFE)}" if bucket and "{{" not in bucket else ""


def _table(settings: Mapping[str, str]) -> str:
    """Returns the table of a database; "" if the address is in a connection, which nobody asks for when DAGs are
    parsed."""
    url, table = settings.get("url", ""), settings.get("table", "")
    scheme = url.partition("://")[0].partition("+")[0]
    if not url or not table or "{{" in table:
        return ""
    if scheme == "sqlite":
        path = url.partition("://")[2].removeprefix("/").partition("?")[0]
        return f"sqlite://{quote(installation().path(path), SAFE)}/{quote(table, SAFE)}" if path else ""
    parts = _split(url)
    if parts is None:
        return ""
    host, port, path = parts
    if scheme in ("postgres", "postgresql"):
        schema, _, name = table.rpartition(".")
        return f"postgres://{host}:{port or 5432}{path}/{quote(schema or 'public', SAFE)}/{quote(name, SAFE)}"
    if scheme in ("mysql", "mariadb"):
        # One server and database have one name, whichever option names the database.
        schema, _, name = table.rpartition(".")
        database = f"/{quote(schema, SAFE)}" if schema else path
        return f"mysql://{host}:{port or 3306}{database}/{quote(name, SAFE)}"
    return f"{scheme}://{host}{f':{port}' if port else ''}{path}/{quote(table, SAFE)}"


def _iceberg(settings: Mapping[str, str]) -> str:
    """Returns catalog, namespace and table by their names: not the address, which may be in a connection."""
    table = settings.get("table", "").strip()
    catalog = settings.get("catalog.name", "").strip() or "default"
    return f"iceberg://{quote(catalog, '')}/{quote(table.replace('.', '/'), SAFE)}" if "." in table else ""


def _topic(settings: Mapping[str, str]) -> str:
    servers, topic = settings.get("servers", "").split(","), settings.get("topic", "")
    if not servers[0].strip() or not topic or "{{" in topic:
        return ""
    return f"kafka://{servers[0].strip()}/{quote(topic, SAFE)}"


def _stream(settings: Mapping[str, str]) -> str:
    parts, stream = _split(settings.get("url", "")), settings.get("stream", "")
    if parts is None or not stream or "{{" in stream:
        return ""
    host, port, path = parts
    return f"redis://{host}:{port or 6379}{path or '/0'}/{quote(stream, SAFE)}" if host else ""


def _address(settings: Mapping[str, str]) -> str:
    parts = _split(settings.get("url", ""))
    if parts is None or not parts[0]:
        return ""
    scheme, (host, port, path) = settings["url"].partition("://")[0], parts
    return f"{scheme}://{host}{f':{port}' if port else ''}{path}"


def _queue(settings: Mapping[str, str]) -> str:
    queue = settings.get("queue", "")
    parts = _split(queue)
    return f"sqs://{parts[0]}{parts[2]}" if parts and parts[0] else f"sqs://{quote(queue, SAFE)}" if queue else ""


def _split(url: str) -> tuple[str, int | None, str] | None:
    """Returns host, port and path of a URL; None if it is none, or cannot be read."""
    if "://" not in url:
        return None
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port, quote(parts.path.rstrip("/"), SAFE)
    except ValueError:
        return None


_MADE: dict[str, Callable[[Mapping[str, str]], str]] = {
    "file": lambda settings: _path(settings.get("path", "")),
    "delta": lambda settings: _path(settings.get("path", "")),
    "iceberg": _iceberg,
    "s3": _bucket,
    "sql": _table,
    "postgres": _table,
    "mysql": _table,
    "kafka": _topic,
    "redis": _stream,
    "http": _address,
    "sqs": _queue,
}
"""Plugin → URI of what its settings name; "" if they do not."""
_LISTS = {"kafka": ("topic", "topics"), "postgres": ("table", "tables"), "redis": ("stream", "streams")}
"""Plugin → option of one name, which is that of the destination, and the source's option of several."""
