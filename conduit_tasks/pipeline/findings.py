"""Errors and warnings of a pipeline file and their places: findings with stable codes, and the report that collects
them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Path = tuple[str | int, ...]
"""Keys and list positions from the document's root: ("pipelines", 0, "connectors", 1, "plugin")."""
Mark = tuple[int, int]
"""Line and column, both from 1."""

CODES = {
    "E001": "the file or folder cannot be read",
    "E002": "the YAML is broken",
    "E003": "a key appears twice in one map",
    "E004": "an environment variable is missing or badly written",
    "E005": "the version cannot be read here",
    "E006": "the document is not a pipeline file",
    "E101": "unknown key",
    "E102": "a required key is missing",
    "E103": "a value has the wrong type or is out of range",
    "E104": "an id has other characters than A-Z a-z 0-9 _ : . - or more than 128 of them",
    "E105": "an id is used twice",
    "E106": "two pipelines would get the same name in Airflow",
    "E107": "a key does not belong to this type of connector",
    "E108": "two connectors would share what must be each one's own",
    "E201": "the pipeline has no source",
    "E202": "the pipeline has no destination",
    "E203": "unknown plugin",
    "E204": "the plugin cannot run here (a standalone processor, or another kind)",
    "E205": "a plugin's setting is unknown, missing or wrong",
    "E206": "a trigger filter is wrong",
    "E207": "a processor's condition is wrong",
    "E208": "the schedule or the replay interval is wrong",
    "E209": "delivery options contradict each other",
    "E210": "the nack window can never trip as written",
    "E211": "the guarantee cannot be given by this destination",
    "E212": "a field reference, a handler or a notifier is written wrongly",
    "E214": "the spool cannot keep a gateway's journal",
    "E215": "a source cannot wake the pipeline",
    "E216": "an Airflow connection is missing, or of a type that the connector does not take",
    "E217": "an Airflow asset is written wrongly",
    "W101": "a deprecated name",
    "W102": "the version is missing or unknown",
    "W103": "a key is newer than the version of the file",
    "W104": "Conduit would expand this environment variable",
    "W105": "the plugin's version is ignored",
    "W106": "the document is empty",
    "W201": "the lag budget is below one micro-batch",
    "W202": "an option has no effect as written",
    "W203": "failed records are dropped",
    "W204": "what is asked for needs something that cannot be checked here",
    "W205": "what the name of the pipe says is not so",
    "W206": "a condition, template, processor or filter does not fit the source's first records",
}
"""Code → meaning. Codes are stable: scripts and editors may rely on them. E = error, W = warning."""


@dataclass(frozen=True)
class Finding:
    """One error or warning. `line` and `column` count from 1; 0 if there is no place (the file cannot be read)."""

    file: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    message: str
    hint: str = ""
    pipeline: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code} {self.message}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Findings:
    """Findings of one document, and the place of each path in it.

    `secrets` maps the values of environment variables back to `${NAME}`: no value of the environment ever gets into a
    message.
    """

    file: str
    values: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    found: list[tuple[Path, Finding]] = field(default_factory=list)

    def add(self, code: str, path: Path, message: str, hint: str = "", *, mark: Mark | None = None) -> None:
        """Adds a finding at `path`: its key (unknown keys, ids) or, if there is no such path, its nearest parent."""
        line, column = mark or self.locate(path)
        severity: Literal["error", "warning"] = "error" if code.startswith("E") else "warning"
        finding = Finding(self.file, line, column, code, severity, self._masked(message), self._masked(hint))
        self.found.append((path, finding))

    def locate(self, path: Path) -> Mark:
        """Returns the place of a path: of a key its name, of an item of a list its beginning."""
        while path:
            if path in self.keys:
                return self.keys[path]
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), (1, 1))

    def broken(self, prefix: Path) -> bool:
        """Returns whether an error lies at or below `prefix`, or above it (then everything below is in doubt)."""
        return any(
            finding.severity == "error" and path[: len(prefix)] == prefix[: len(path)] for path, finding in self.found
        )

    def wrong(self, prefix: Path) -> bool:
        """Returns whether an error lies at or below `prefix`."""
        return any(finding.severity == "error" and path[: len(prefix)] == prefix for path, finding in self.found)

    def findings(self, ids: Mapping[int, str]) -> list[Finding]:
        """Returns all findings in file order, each with the id of its pipeline (`ids`: by position in the document)."""
        named = []
        for path, f in self.found:
            index = path[1] if len(path) > 1 and path[0] == "pipelines" else None
            pipeline = ids.get(index) if isinstance(index, int) else None
            named.append(Finding(f.file, f.line, f.column, f.code, f.severity, f.message, f.hint, pipeline))
        return sorted(named, key=lambda f: (f.line, f.column))

    def _masked(self, text: str) -> str:
        for value, name in sorted(self.secrets.items(), key=lambda item: -len(item[0])):
            text = text.replace(value, name)
        return text


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns a hint that names the most similar word of `known`, or all of them if none is similar."""
    known = sorted(known)
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known are: {', '.join(known)}" if known else ""
