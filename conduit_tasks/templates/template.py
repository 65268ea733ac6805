"""Go templates over a record, as Conduit's conditions and values are written (`{{ eq .Metadata.kind "flight" }}`): the
text that one prints, and which texts count as a condition's true and false.

The subset: actions with trim markers, comments, pipelines, variables, `if`, `range`, `with`, `break`, `continue`,
Go's functions and sprig's (see `functions`). Dot is the record: `.Position .Operation .Metadata .Key
.Payload.Before .Payload.After`. A missing key of a map prints `<no value>`, equals only `nil` and has no fields. Raw
data prints as text and has no fields. Nothing of Python can be reached from a template.
"""

from __future__ import annotations

from functools import lru_cache

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.record.parts import Parts
from conduit_tasks.record.record import Record
from conduit_tasks.templates.parser import parse
from conduit_tasks.templates.values import show

TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
"""Texts that count as booleans: by Go's `strconv.ParseBool`, which Conduit applies to a condition's output."""

LONGEST = 1 << 20
"""Limit of the characters of a template."""

_FAULTS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)


class Template:
    """A compiled template; safe to use from several threads."""

    __slots__ = ("_program", "_single", "constant", "reads", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._program = parse(text)
        self._single = self._program.single.f if self._program.single else None
        self.constant = None if "{{" in text else text
        """The text itself if there is nothing to evaluate in it."""
        self.reads: Parts = self._program.reads
        """The parts of a record that it can look at."""

    def render(self, record: Record) -> str:
        """Returns the text for this record. Raises RecordError."""
        try:
            if self._single is not None:
                return show(self._single(record, [record]))
            out: list[str] = []
            env = [record] + [None] * (self._program.variables - 1)
            for node in self._program.nodes:
                node(record, env, out)
            return "".join(out)
        except RecordError as error:
            raise RecordError(f"template {self.text!r}: {error}") from None
        except _FAULTS as error:
            raise RecordError(f"template {self.text!r}: {type(error).__name__}: {error}") from None

    def condition(self, record: Record) -> bool:
        """Returns whether it prints a true boolean. Raises RecordError if it prints anything but a boolean."""
        single = self._single
        if single is not None:
            try:
                value = single(record, [record])
                printed = "" if value is True or value is False else show(value)
            except RecordError as error:
                raise RecordError(f"template {self.text!r}: {error}") from None
            except _FAULTS as error:
                raise RecordError(f"template {self.text!r}: {type(error).__name__}: {error}") from None
            if value is True or value is False:
                return value
        else:
            printed = self.render(record)
        if printed in TRUE:
            return True
        if printed in FALSE:
            return False
        raise RecordError(f"condition {self.text!r} must print true or false, not {printed[:200]!r}")


@lru_cache(maxsize=1024)
def compile(text: str) -> Template:
    """Returns the compiled template. Raises ConfigError that names line and column of a mistake."""
    if len(text) > LONGEST:
        raise ConfigError(f"a template may have {LONGEST:,} characters, not {len(text):,}")
    try:
        return Template(text)
    except RecursionError:
        raise ConfigError(f"template {text[:60]!r}…: its parentheses or blocks are nested too deep") from None
