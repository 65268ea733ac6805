"""YAML with locations: every value as written, every path with its line and column, `${NAME}` expanded.

`${NAME:-text}` gives the text if the variable is unset or empty, as in a shell; `$$` is a dollar.

Scalars stay text: settings are strings anyway (`1.50` must not become `1.5`), and the model turns the rest into
numbers. Works on the node tree, because only nodes still know duplicate keys, tags and marks. libyaml composes it
twenty times faster than ruamel, which is used if libyaml refuses: it knows YAML 1.2, and has better messages.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.docinfo import DocInfo
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from conduit_tasks.pipeline.findings import Findings, Mark, Path
from conduit_tasks.pipeline.ids_before_break import DEPTH, LONGEST, Named, ids_before_break

Node = Any
"""A node of either library: `id`, `tag`, `value`, `style`, `start_mark`."""
_VARIABLE = re.compile(r"\$(?:(\$)|\{([^}]*+)(\})?|([A-Za-z_][A-Za-z0-9_]*))")
_BARE = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*))")
_BEGINNING = re.compile(r"^[ \t?:-]+", re.MULTILINE)
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
MAX_NODES = 100_000
"""Limit of nodes, aliases counted each time they are used: more is an attack or a mistake."""


@dataclass
class Document:
    """One YAML document. `value`: dict, list, str (every scalar), None (null). `named`: of a broken document, the ids
    of pipelines before the error, and after it if the YAML itself is valid (nested too deep)."""

    value: Any
    report: Findings
    named: list[Named] = field(default_factory=list)


@dataclass
class _Reader:
    report: Findings
    env: Mapping[str, str]
    nodes: int = 0
    open: set[int] = field(default_factory=set)

    def value(self, node: Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or id(node) in self.open:
            raise _TooLarge(_mark(node))
        self.report.values[path] = _mark(node)
        if node.id == "scalar":
            return self.scalar(node, path)
        self.open.add(id(node))
        try:
            if node.id == "sequence":
                return [self.value(item, (*path, n)) for n, item in enumerate(node.value)]
            return self.mapping(node, path)
        finally:
            self.open.discard(id(node))

    def mapping(self, node: Node, path: Path) -> dict[str, Any]:
        out: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = {**self.merge(value_node, path), **merged}
                continue
            if key_node.id != "scalar":
                self.report.add("E002", path, "a key must be text", "quote templates: '{{ … }}'", mark=_mark(key_node))
                continue
            key = str(key_node.value)
            at = (*path, key)
            if key in out:
                line, column = self.report.keys[at]
                self.report.add(
                    "E003",
                    at,
                    f"the key '{key}' is given twice; the first is in line {line}, column {column}",
                    "remove one of them",
                    mark=_mark(key_node),
                )
                continue
            self.report.keys[at] = _mark(key_node)
            out[key] = self.value(value_node, at)
        return {**merged, **out}

    def merge(self, node: Node, path: Path) -> dict[str, Any]:
        """Returns the keys of `<<: *alias` (or of a list of aliases, the first wins)."""
        if node.id == "sequence":
            parts = [self.merge(item, path) for item in node.value]
            return {key: value for part in reversed(parts) for key, value in part.items()}
        if node.id == "mapping":
            here, written = self.report.values[path], dict(self.report.keys)
            out = self.value(node, path)
            self.report.keys.update(written)
            self.report.values[path] = here
            return out if isinstance(out, dict) else {}
        self.report.add("E002", path, "'<<' merges maps only", "give it an alias of a map", mark=_mark(node))
        return {}

    def scalar(self, node: Node, path: Path) -> str | None:
        if node.tag == "tag:yaml.org,2002:null" and not node.style:
            return None
        return _VARIABLE.sub(lambda found: self.expand(found, node, path), str(node.value))

    def left(self, dollar: str | None, bare: str, node: Node, path: Path) -> str:
        """Returns the replacement of `$$` or `$NAME`. Conduit expands `$NAME` as well; here it stays, because templates
        and SQL are full of `$`."""
        if dollar:
            return "$"
        if bare in self.env:
            self.report.add(
                "W104",
                path,
                f"${bare} is left as it is, Conduit would put the environment variable here",
                f"write ${{{bare}}} for the variable, or $${bare} for the text",
                mark=_mark(node),
            )
        return f"${bare}"

    def expand(self, found: re.Match[str], node: Node, path: Path) -> str:
        dollar, name, closed, bare = found.groups()
        if dollar or bare:
            return self.left(dollar, bare, node, path)
        if not closed:
            # Handles the rest of the text at once: a new search from every `${` would take quadratic time.
            return "${" + _BARE.sub(lambda inner: self.left(inner[1], inner[2], node, path), name)
        variable = _NAME.fullmatch(name)
        if not variable:
            self.report.add(
                "E004",
                path,
                f"'${{{name}}}' does not name an environment variable",
                "write ${NAME}, ${NAME:-default}, or $${…} for the text itself",
                mark=_mark(node),
            )
            return found[0]
        value = self.env.get(variable[1])
        if variable[2] is not None and not value:
            return variable[2]
        if value is None:
            self.report.add(
                "E004",
                path,
                f"the environment variable {name} is not set",
                f"export {name}=…, give a default ${{{name}:-…}}, or write $${{{name}}} for the text itself",
                mark=_mark(node),
            )
            return found[0]
        if len(value) > 3:
            self.report.secrets[value] = f"${{{variable[1]}}}"
        return value


class _TooLarge(Exception):
    def __init__(self, mark: Mark, said: str = "aliases refer to themselves, or expand to too much") -> None:
        super().__init__(said)
        self.mark = mark


def read(text: str, file: str, env: Mapping[str, str]) -> list[Document]:
    """Returns the documents of a file, with errors in their reports. Nothing can be read after broken YAML: the
    documents before it are returned, and the report of the last one has the error (E002) at its root."""
    documents: list[Document] = []
    try:
        for node in _nodes(text):
            report = Findings(file)
            documents.append(Document(None, report))
            documents[-1].value = _Reader(report, env).value(node, ())
    except (YAMLError, _TooLarge) as error:
        if not (isinstance(error, _TooLarge) and documents):
            documents.append(Document(None, Findings(file)))
        mark, message = _problem(error)
        hint = "fix the YAML: indent with spaces, quote templates, and ${NAME} inside braces"
        documents[-1].report.add("E002", (), message, hint, mark=mark)
        documents[-1].named = named(text, env, len(documents) - 1)
    return documents


def named(text: str, env: Mapping[str, str], whole: int = 0) -> list[Named]:
    """Returns the ids of pipelines that a broken file names, after its first `whole` documents, which could be read."""
    reader, out = _Reader(Findings(""), env), []
    for id, line in ids_before_break(text, whole):
        mark = yaml.Mark("", 0, line - 1, 0, None, None)
        out.append(Named(str(reader.scalar(yaml.ScalarNode("", id, mark), ())), line))
    return out


def _nodes(text: str) -> Iterator[Node]:
    _check_depth(text)
    try:
        found: Iterable[Node] = list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError:
        found = _slowly(text)
    yield from found


def _check_depth(text: str) -> None:
    """Raises _TooLarge if the text is longer than `LONGEST`, or if composing would go deeper than `DEPTH`: each level
    takes a level of the interpreter's stack.

    Each level needs a bracket or a character at the beginning of a line: if a file has few of these, its events are not
    parsed.
    """
    if len(text) > LONGEST:
        raise _TooLarge((1, 1), f"a file has at most {LONGEST:,} characters, this one {len(text):,}")
    if text.count("[") + text.count("{") + max(map(len, _BEGINNING.findall(text)), default=0) <= DEPTH:
        return
    depth = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                mark = event.start_mark
                raise _TooLarge((mark.line + 1, mark.column + 1), f"lists and maps are nested deeper than {DEPTH}")


def _slowly(text: str) -> Iterator[Node]:
    library = YAML(typ="safe", pure=True)
    library.doc_infos.append(DocInfo())  # the library writes directives into it
    constructor, parser = library.get_constructor_parser(io.StringIO(text))
    try:
        with warnings.catch_warnings():
            # Warnings of anchors given twice, which YAML allows.
            warnings.simplefilter("ignore")
            while constructor.composer.check_node():
                yield constructor.composer.get_node()
    finally:
        parser.dispose()


def _problem(error: Exception) -> tuple[Mark, str]:
    if isinstance(error, _TooLarge):
        return error.mark, str(error)
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part)
        return ((mark.line + 1, mark.column + 1) if mark else (1, 1)), f"not YAML: {message}"
    if isinstance(error, ReaderError):
        return (1, 1), f"not YAML: {str(error).splitlines()[0]}"
    return (1, 1), f"not YAML: {error}"


def _mark(node: Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1
