"""The value of `plugin`, Conduit's reference `[kind:]name[@version]`: its parts, and whether two name the same
plugin."""

from __future__ import annotations

from typing import NamedTuple

KINDS = ("builtin", "any", "standalone")
STANDALONE = "standalone:"


class PluginReference(NamedTuple):
    """Parts of a plugin reference; `kind` and `version` are "" if not written."""

    kind: str
    name: str
    version: str


def parse_plugin(text: str) -> PluginReference:
    """Splits `builtin:file@v1.2` into ("builtin", "file", "v1.2")."""
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        kind, rest = "", text.strip()
    name, _, version = rest.partition("@")
    return PluginReference(kind, name, version)


def plugin_name(text: str) -> str:
    """Returns the name by which a connector is found: without kind and version, but the whole reference of a standalone
    one, which is a program."""
    return text.strip() if is_standalone(text) else parse_plugin(text).name


def is_standalone(text: str) -> bool:
    """Returns whether a plugin is a standalone connector of Conduit."""
    return text.strip().startswith(STANDALONE)


def same_plugin(one: str, other: str) -> bool:
    """Returns whether two plugins are the same, perhaps in different versions: positions then mean the same."""
    return parse_plugin(one)._replace(version="") == parse_plugin(other)._replace(version="")
