"""The value of `plugin`: Conduit's reference `[kind:]name[@version]`."""

from __future__ import annotations

from typing import NamedTuple

KINDS = ("builtin", "any", "standalone")


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
