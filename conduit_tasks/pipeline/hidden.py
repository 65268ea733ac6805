"""The text of a pipeline file without its secrets, for people who may read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from conduit_tasks.errors import ConfigError
from conduit_tasks.secret_names import FIELD, OPTION

HIDDEN = "'***'"
_ADDRESS = re.compile(r"([A-Za-z][\w+.-]*)://(?:[^/?#\s]*@)?([^/?#\s@]*)\S*")


def without_secrets(text: str) -> str:
    """Returns the text with `***` for values whose key says that they are secret, and for all of an address but scheme
    and host: its path, too, may be a secret. Names of variables stay. Raises ConfigError if it is no plain YAML."""
    out, end = [], 0
    try:
        spans = sorted(span for node in yaml.compose_all(text, Loader=yaml.CSafeLoader) for span in _spans(node))
    except yaml.YAMLError as error:
        raise ConfigError(f"the file is not shown: {' '.join(str(error).split())}") from None
    for begin, until, instead in spans:
        # Aliases name the same text several times.
        if begin >= end:
            out += [text[end:begin], instead]
            end = until
    return "".join([*out, text[end:]])


def _spans(node: Any, *, secret: bool = False) -> Iterator[tuple[int, int, str]]:
    """Yields begin, end and replacement of each value to hide."""
    if node is None:
        return
    if node.id == "scalar":
        where = node.start_mark.index, node.end_mark.index
        found = _ADDRESS.fullmatch(node.value)
        if secret and node.value and "${" not in node.value:
            yield (*where, HIDDEN)
        elif found:
            yield (*where, f"'{found[1]}://{found[2]}/***'")
    elif node.id == "sequence":
        for each in node.value:
            yield from _spans(each, secret=secret)
    else:
        for key, value in node.value:
            name = str(key.value) if key.id == "scalar" else ""
            yield from _spans(value, secret=secret or bool(OPTION.search(name) or FIELD.search(name)))
