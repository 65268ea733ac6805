"""The grammar (CloudEvents SQL 1.0.0, section 2) with the precedence of section 3.6, and messages of parse errors.

Precedence, tightest first: functions; NOT and unary minus; LIKE, IN; `* / %`; `+ -`; comparisons; AND, OR and XOR,
which are equal and go from left to right. So `NOT a = b` is `(NOT a) = b`.

Text that is no expression raises ParseError; the parser holds no state, so that one serves all threads.
"""

from __future__ import annotations

from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from conduit_tasks.filters.cesql.errors import ParseError

GRAMMAR = r"""
start: expression
?expression: logic
?logic: comparison | comparison (_logic_operator comparison)+ -> logic
_logic_operator: AND | OR | XOR
?comparison: sum | comparison COMPARISON sum -> compare
?sum: product | sum PLUS product -> add | sum MINUS product -> subtract
?product: postfix
    | product STAR postfix -> multiply
    | product SLASH postfix -> divide
    | product PERCENT postfix -> modulo
?postfix: unary
    | postfix LIKE STRING -> like
    | postfix NOT LIKE STRING -> not_like
    | postfix IN set -> within
    | postfix NOT IN set -> not_within
?unary: atom | NOT unary -> negation | MINUS unary -> negative
?atom: _LPAR expression _RPAR
    | EXISTS IDENTIFIER -> exists
    | FUNCTION _LPAR [expression (_COMMA expression)*] _RPAR -> call
    | IDENTIFIER -> attribute
    | INTEGER -> integer
    | PLUS INTEGER -> positive
    | STRING -> text
    | TRUE -> true
    | FALSE -> false
set: _LPAR expression (_COMMA expression)* _RPAR

AND.9: /and(?![a-z0-9_])/i
OR.9: /or(?![a-z0-9_])/i
XOR.9: /xor(?![a-z0-9_])/i
NOT.9: /not(?![a-z0-9_])/i
LIKE.9: /like(?![a-z0-9_])/i
IN.9: /in(?![a-z0-9_])/i
EXISTS.9: /exists(?![a-z0-9_])/i
TRUE.9: /true(?![a-z0-9_])/i
FALSE.9: /false(?![a-z0-9_])/i
FUNCTION.8: /[a-z][a-z_]*(?=[ \t\r\n]*\()/i
INTEGER.7: /[0-9]+(?![a-z0-9])/i
IDENTIFIER.6: /[a-z0-9]+/i
STRING: /'(\\.|[^'\\])*'|"(\\.|[^"\\])*"/s
COMPARISON: "=" | "!=" | "<>" | ">=" | "<=" | "<" | ">"
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
PERCENT: "%"
_LPAR: "("
_RPAR: ")"
_COMMA: ","
%ignore /[ \t\r\n]+/
"""

_OPERAND = {"IDENTIFIER", "INTEGER"}
_OPERATOR = {"COMPARISON", "STAR"}


def parser(transformer: Transformer[Any, Any]) -> Lark:
    """Makes a parser that passes each piece to `transformer` as soon as it is read: no tree, no recursion."""
    return Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=transformer)


def parse(lark: Lark, text: str) -> Any:
    """Parses `text` and returns the transformer's result. Raises ParseError."""
    try:
        return lark.parse(text)
    except UnexpectedToken as error:
        token = error.token
        if token.type == "$END":
            raise ParseError(
                f"the expression ends where {_expected(error.expected)} was expected", *_end(text)
            ) from None
        raise ParseError(f"{_expected(error.expected)} was expected, not {str(token)!r}", *_place(token)) from None
    except UnexpectedCharacters as error:
        raise ParseError(_character(text, error.pos_in_stream or 0), error.line, error.column) from None
    except UnexpectedInput as error:
        raise ParseError("this is no expression", max(error.line, 1), max(error.column, 1)) from None


def _place(token: Token) -> tuple[int, int]:
    return token.line or 1, token.column or 1


def _end(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return len(lines), len(lines[-1]) + 1


def _character(text: str, at: int) -> str:
    character = text[at]
    if character in "'\"":
        return f"the text that begins with {character} has no end; a quote inside is written \\{character}"
    return f"{character!r} has no meaning here"


def _expected(terminals: set[str]) -> str:
    if set(terminals) == {"STRING"}:
        return "a pattern in quotes"
    words = []
    if terminals >= _OPERAND:
        words.append("a value")
    elif "IDENTIFIER" in terminals:
        words.append("an attribute's name")
    if terminals >= _OPERATOR:
        words.append("an operator")
    words += [word for name, word in (("_LPAR", "'('"), ("_RPAR", "')'"), ("_COMMA", "','")) if name in terminals]
    if "a value" in words and "'('" in words:
        words.remove("'('")
    if "an operator" not in words:
        words += [name for name in ("LIKE", "IN", "INTEGER") if name in terminals and "a value" not in words]
    return " or ".join(words) or "something else"
