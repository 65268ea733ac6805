"""A version of a pipeline: its topology as the broker keeps it, without any secret, and differences of two versions.

Values of settings may be secrets, so only a fingerprint of 24 bits of each is kept: enough to see that it changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from conduit_tasks.connectors.plugins import same_plugin
from conduit_tasks.errors import ConfigError
from conduit_tasks.topology import Pipeline, Source

Version = Mapping[str, Any]
"""The topology as JSON types: `asdict` of a Pipeline, the values of settings replaced by fingerprints."""

_NOT_DELIVERY = ("file", "line", "mask", "index")
_KEPT_APART = ("id", "sources", "destinations", "processors", "dead_letters")


@dataclass(frozen=True)
class Difference:
    """One difference. `node`: `pipeline`, `sources.<id>` or `destinations.<id>`; `topic`: "" for a whole node, else the
    key of the file, such as `settings` or `trigger`; `names`: the keys below it, if any."""

    kind: str
    """`added`, `removed` or `changed`."""
    node: str
    topic: str = ""
    names: tuple[str, ...] = ()


def version_of(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the version of a pipeline that the broker keeps, as JSON types."""
    found = asdict(pipeline)
    for each, source in zip(found["sources"], pipeline.sources):
        each["ack_on"] = _ack_on(source)
    for name in _NOT_DELIVERY:
        del found[name]
    masked: dict[str, Any] = _plain(found, pipeline.id)
    return masked


def _ack_on(source: Source) -> str | None:
    """Returns the effective `ack-on`, so that a changed default of a connector is a difference, too."""
    from conduit_tasks.connectors.registry import ack_on

    try:
        return ack_on(source)
    except ConfigError:
        return source.ack_on


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _fingerprints(of, f"{place}/{name}") if name == "settings" else _plain(of, f"{place}/{name}")
            for name, of in value.items()
            if name != "section"
        }
    if isinstance(value, list | tuple):
        return [_plain(each, place) for each in value]
    return value


def _fingerprints(settings: Mapping[str, str], place: str) -> dict[str, str]:
    return {
        name: blake2b(f"{place}/{name}={value}".encode(), digest_size=3).hexdigest() for name, value in settings.items()
    }


def differences(old: Version, new: Version) -> list[Difference]:
    """Returns what version `new` adds, removes and changes; the pipeline's own keys first, in file order."""
    out = [Difference("changed", "pipeline", topic, names) for topic, names in _of_pipeline(old, new)]
    for section, compared in (("sources", _of_source), ("destinations", _of_destination)):
        before = {each["id"]: each for each in old[section]}
        after = {each["id"]: each for each in new[section]}
        out += [Difference("removed", f"{section}.{id}") for id in before if id not in after]
        for id, each in after.items():
            node = f"{section}.{id}"
            if id not in before:
                out.append(Difference("added", node))
            else:
                out += [Difference("changed", node, topic, names) for topic, names in compared(before[id], each)]
        if [id for id in before if id in after] != [id for id in after if id in before]:
            out.append(Difference("changed", "pipeline", f"order of {section}"))
    return out


def alike(old: Version, new: Version) -> list[tuple[str, str]]:
    """Returns nodes that may have been renamed: (removed, added) with the same plugin and settings."""
    out = []
    for section in ("sources", "destinations"):
        before, after = ([each["id"] for each in of[section]] for of in (old, new))
        gone = [each for each in old[section] if each["id"] not in after]
        come = [each for each in new[section] if each["id"] not in before]
        for one in gone:
            same = [
                other for other in come if other["plugin"] == one["plugin"] and _same_settings(old, new, one, other)
            ]
            if len(same) == 1:
                out.append((f"{section}.{one['id']}", f"{section}.{same[0]['id']}"))
    return out


def _same_settings(old: Version, new: Version, one: Version, other: Version) -> bool:
    return old["id"] == new["id"] and one["settings"] == other["settings"]


def _of_pipeline(old: Version, new: Version) -> list[tuple[str, tuple[str, ...]]]:
    names = [name for name in new if name not in _KEPT_APART and old.get(name) != new[name]]
    return [
        *_processors(old, new),
        *([("dead-letter-queue", ())] if old["dead_letters"] != new["dead_letters"] else []),
        *((_key(name), ()) for name in names),
    ]


def _of_source(old: Version, new: Version) -> list[tuple[str, tuple[str, ...]]]:
    return [*_connector(old, new), *_keys(old, new, ("ack_on", "durability"))]


def _of_destination(old: Version, new: Version) -> list[tuple[str, tuple[str, ...]]]:
    return [
        *_connector(old, new),
        *([("trigger", ())] if old["filters"] != new["filters"] else []),
        *_below("delivery", old["delivery"], new["delivery"]),
        *_below("dead-letter-queue", old["dead_letters"], new["dead_letters"]),
    ]


def _connector(old: Version, new: Version) -> list[tuple[str, tuple[str, ...]]]:
    another = [] if same_plugin(old["plugin"], new["plugin"]) else ["plugin"]
    version = [("version", ())] if not another and old["plugin"] != new["plugin"] else []
    return [
        *((name, ()) for name in another),
        *version,
        *_below("settings", old["settings"], new["settings"]),
        *_processors(old, new),
    ]


def _processors(old: Version, new: Version) -> list[tuple[str, tuple[str, ...]]]:
    before, after = ({each["id"]: each for each in of["processors"]} for of in (old, new))
    names = [id for id in {**before, **after} if before.get(id) != after.get(id)]
    if not names and list(before) != list(after):
        names = list(after)
    return [("processors", tuple(names))] if names else []


def _keys(old: Version, new: Version, names: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(_key(name), ()) for name in names if old.get(name) != new.get(name)]


def _below(topic: str, old: Version, new: Version) -> list[tuple[str, tuple[str, ...]]]:
    names = tuple(_key(name) for name in {**old, **new} if old.get(name) != new.get(name))
    return [(topic, names)] if names else []


def _key(name: str) -> str:
    return name.replace("_", "-")
