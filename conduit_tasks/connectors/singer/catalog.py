"""The catalog of a tap: what it offers (`--discover`), and the choice of streams and fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conduit_tasks.errors import ConfigError, SourceError


def chosen(catalog: dict[str, Any], select: Sequence[str]) -> dict[str, Any]:
    """Returns the catalog with exactly these streams selected: `STREAM` with all of its fields; `!STREAM.FIELD` leaves
    a field out. None given: as it is. Raises ConfigError if one is not there, SourceError if it is no catalog."""
    streams = catalog.get("streams") if isinstance(catalog, dict) else None
    if not isinstance(streams, list) or not all(isinstance(each, dict) for each in streams):
        raise SourceError("singer: the catalog has no list of streams")
    if not select:
        return catalog
    named = {_name(stream): stream for stream in streams}
    wanted = [word for word in select if not word.startswith("!")]
    left_out = [_field(word[1:], named) for word in select if word.startswith("!")]
    for name in wanted:
        if name not in named:
            raise ConfigError(f"singer: option 'select' names the stream {name}, the tap has {', '.join(named)}")
    for name, stream in named.items():
        selected = name in wanted or not wanted
        metadata = stream.setdefault("metadata", [])
        _entry(metadata, [])["selected"] = selected
        # What taps without metadata read
        if isinstance(stream.get("schema"), dict):
            stream["schema"]["selected"] = selected
        for of, field in left_out:
            if of == name:
                _entry(metadata, ["properties", field])["selected"] = False
    return catalog


def listed(catalog: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what `conduit connectors describe` shows of each stream."""
    out = []
    for stream in chosen(catalog, ())["streams"]:
        own = _entry(list(stream.get("metadata") or []), [])
        out.append(
            {
                "stream": _name(stream),
                "keys": stream.get("key_properties") or own.get("table-key-properties") or [],
                "replication": own.get("forced-replication-method")
                or stream.get("replication_method")
                or own.get("replication-method")
                or "",
                "fields": sorted((stream.get("schema") or {}).get("properties") or {}),
            }
        )
    return out


def _name(stream: dict[str, Any]) -> str:
    return str(stream.get("tap_stream_id") or stream.get("stream") or "")


def _field(word: str, named: dict[str, Any]) -> tuple[str, str]:
    # Names of streams may hold dots.
    for name in sorted(named, key=len, reverse=True):
        if word.startswith(f"{name}."):
            return name, word.removeprefix(f"{name}.")
    raise ConfigError(f"singer: option 'select' leaves out {word}, which is no STREAM.FIELD of {', '.join(named)}")


def _entry(metadata: list[Any], breadcrumb: list[str]) -> dict[str, Any]:
    for each in metadata:
        if isinstance(each, dict) and list(each.get("breadcrumb") or []) == breadcrumb:
            found: dict[str, Any] = each.setdefault("metadata", {})
            return found
    metadata.append({"breadcrumb": breadcrumb, "metadata": {}})
    made: dict[str, Any] = metadata[-1]["metadata"]
    return made
