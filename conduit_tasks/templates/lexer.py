"""Template text cut into literal text and the tokens of its actions (Go text/template, "Text and spaces")."""

from __future__ import annotations

import re
from dataclasses import dataclass

from conduit_tasks.errors import ConfigError

_TOKEN = re.compile(
    r"""
    (?P<close>(?:\s-)?\}\})
  | (?P<space>\s+)
  | (?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`)
  | (?P<char>'(?:\\[^\n]+?|[^'\\\n])')
  | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+
      |(?:\d[\d_]*+(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+)(?![\w.]))
  | (?P<field>\.[^\W\d]\w*)
  | (?P<variable>\$\w*)
  | (?P<name>[^\W\d]\w*)
  | (?P<symbol>:=|[=|(),.])
    """,
    re.VERBOSE,
)
_COMMENT = re.compile(r"/\*.*?\*/(\s-)?\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `kind`: string, char, number, field, variable, name, symbol, or end. `glued`: no space before it."""

    kind: str
    text: str
    at: int
    glued: bool


@dataclass(frozen=True, slots=True)
class Action:
    """The tokens between the braces."""

    tokens: tuple[Token, ...]
    at: int


class Source:
    """The template's text, for positions in messages."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, at: int, reason: str) -> ConfigError:
        """Returns a ConfigError that names line and column (from 1)."""
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return ConfigError(f"template {self.text!r}, line {line}, column {column}: {reason}")


def split(source: Source) -> list[str | Action]:
    """Returns literal text and actions in order; applies trim markers and drops comments."""
    text = source.text
    parts: list[str | Action] = []
    at, trim = 0, False
    while True:
        opening = text.find("{{", at)
        literal = text[at:] if opening < 0 else text[at:opening]
        if trim:
            literal = literal.lstrip(" \t\r\n")
        if opening < 0:
            if literal:
                parts.append(literal)
            return parts
        start = opening + 2
        if text[start : start + 1] == "-" and text[start + 1 : start + 2].isspace():
            literal = literal.rstrip(" \t\r\n")
            start += 1
        if literal:
            parts.append(literal)
        stripped = start + len(text[start:]) - len(text[start:].lstrip())
        if text.startswith("/*", stripped):
            comment = _COMMENT.match(text, stripped)
            if comment is None:
                raise source.error(stripped, "the comment is not closed with */ and }}")
            trim, at = bool(comment[1]), comment.end()
            continue
        tokens, at, trim = _tokens(source, start, opening)
        parts.append(Action(tokens, opening))


def _tokens(source: Source, start: int, opening: int) -> tuple[tuple[Token, ...], int, bool]:
    tokens: list[Token] = []
    at, glued = start, False
    while True:
        found = _TOKEN.match(source.text, at)
        if found is None:
            if at >= len(source.text):
                raise source.error(opening, "the action is not closed with }}")
            raise source.error(at, f"{source.text[at]!r} was not expected here")
        kind = found.lastgroup or ""
        if kind == "close":
            tokens.append(Token("end", "}}", at, False))
            return tuple(tokens), found.end(), found[0][0] != "}"
        if kind != "space":
            tokens.append(Token(kind, found[0], at, glued))
        glued = kind != "space"
        at = found.end()


_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))")


def unquote(text: str) -> str:
    """Returns the value of a Go string or character literal. Raises ValueError."""
    if text[0] == "`":
        return text[1:-1]

    def replace(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code:
            return chr(int(code, 16))
        if found[4]:
            return chr(int(found[4], 8))
        if found[5] in _SIMPLE:
            return _SIMPLE[found[5]]
        if found[5] in "\\\"'":
            return found[5]
        raise ValueError(f"\\{found[5]} is no escape")

    return _ESCAPE.sub(replace, text[1:-1])


def number(text: str) -> int | float:
    """Returns the value of a Go number literal. Raises ValueError."""
    clean = text.replace("_", "")
    digits = clean.lstrip("+-").lower()
    if digits.startswith(("0x", "0b", "0o")):
        return int(clean, 0)
    if digits.isdigit():
        return int(clean, 8) if len(digits) > 1 and digits[0] == "0" else int(clean)
    return float(clean)
