"""The text of a pipeline file without its secrets, for people who may read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from conduit_tasks.errors import ConfigError
from conduit_tasks.secret_names import FIELD, OPTION

HIDDEN = "'***'"
_NAMES = re.compile(r"(\$\{\w+\}|\s|Bearer|Basic)*")
"""Values that are names of variables alone; a default (`${NAME:-text}`) is a value."""
_HOST = re.compile(r"[^:]*|\[[0-9A-Fa-f:.]*\](:\d+)?|[^:]*:(\d*|\$\{\w+\})|[^:]*(:\d+)?(,[^:]*(:\d+)?)*")
_NAME = r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credential|api[-_. ]?key|access[-_. ]?key)"
_WORTH = re.compile(
    rf"://[^/\s:]*:[^/\s@]*@|\$\{{[^}}]{{0,64}}?(?:{_NAME}|key)[^}}]{{0,64}}?:-[^}}]|{_NAME}[\w.-]{{0,64}}=[^\s=$;{{(\[]",
    re.IGNORECASE,
)
"""Texts with a secret somewhere within: an address with a password, the default of a secret variable, `password=…`."""
_QUOTED = re.compile(rf"({_NAME}[\w.-]*[\"']?\s*[=:]\s*)([\"'`])(?!\$\{{)[^\n]+?\2", re.IGNORECASE)
_COMMENT = re.compile(r"#[^\n]*")
_TOLD = re.compile(rf"{_NAME}[\w.-]*[\"']?\s*[=:]\s*(?!\$\{{\w+\}}\s*$)\S|://", re.IGNORECASE)
"""A comment that may be such a line of the file."""
_ADDRESS = re.compile(r"([A-Za-z][\w+.-]*)://(?:[^/?#\s]*@)?([^/?#\s@]*)\S*")


def without_secrets(text: str) -> str:
    """Returns the text with `***` for values whose key says that they are secret, and for all of an address but scheme
    and host: its path, too, may be a secret. Names of variables stay. Raises ConfigError if it is no plain YAML."""
    out, end = [], 0
    try:
        nodes = yaml.compose_all(text, Loader=yaml.CSafeLoader)
        # Of a text that aliases name several times, the span that hides it comes first.
        spans = sorted({s for node in nodes for s in _spans(node)}, key=lambda s: (s[0], s[2] is None, s[1]))
    except yaml.YAMLError as error:
        raise ConfigError(f"the file is not shown: {' '.join(str(error).split())}") from None
    for begin, until, instead in spans:
        # Aliases name the same text several times.
        if begin >= end:
            value = text[begin:until]
            last = "\n" if value.endswith("\n") else ""
            out += [_comments(text[end:begin]), _QUOTED.sub(r"\1'***'", value) if instead is None else instead + last]
            end = until
    return "".join([*out, _comments(text[end:])])


def _comments(text: str) -> str:
    """Returns the text between values, without comments that may have a secret."""
    return _COMMENT.sub(lambda found: "# ***" if _TOLD.search(found[0]) else found[0], text)


def _spans(node: Any, *, secret: bool = False) -> Iterator[tuple[int, int, str | None]]:
    """Yields begin, end and replacement of each text; None: it is shown."""
    if node is None:
        return
    if node.id == "scalar":
        where = node.start_mark.index, node.end_mark.index
        found = _ADDRESS.fullmatch(node.value)
        if secret and node.value and not _NAMES.fullmatch(node.value):
            yield (*where, HIDDEN)
        elif found:
            # A password may hold what ends a host.
            host = found[2] if _HOST.fullmatch(found[2]) else "***"
            yield (*where, f"'{found[1]}://{host}/***'")
        elif _WORTH.search(node.value):
            yield (*where, HIDDEN)
        elif where[0] < where[1]:
            yield (*where, None)
    elif node.id == "sequence":
        for each in node.value:
            yield from _spans(each, secret=secret)
    else:
        for key, value in node.value:
            name = str(key.value) if key.id == "scalar" else ""
            yield from _spans(key)
            yield from _spans(value, secret=secret or bool(OPTION.search(name) or FIELD.search(name)))
