"""Parser of templates: tokens become closures once, with blocks, variables, and the parts of a record that are looked
at; nothing is parsed or looked up by name while records flow.

An expression becomes `f(dot, env)`: `dot` is the value of `.`, `env` the variables by number, `env[0]` being `$`.
A node becomes `f(dot, env, out)`, which appends text to `out` and returns None, or BREAK or CONTINUE.
"""

from __future__ import annotations

from dataclasses import dataclass

from conduit_tasks.record.parts import EVERYTHING, NOTHING, Parts, parts_of
from conduit_tasks.templates import expressions as ex
from conduit_tasks.templates import nodes as code
from conduit_tasks.templates.expressions import Expression
from conduit_tasks.templates.functions import FUNCTIONS
from conduit_tasks.templates.lexer import Action, Source, Token, number, split, unquote
from conduit_tasks.templates.nodes import BREAK, CONTINUE, Node

_BLOCKS = ("if", "range", "with")
_UNSUPPORTED = ("define", "template", "block")


@dataclass(frozen=True)
class Program:
    """A compiled template: its nodes, its expression if it consists of a single one, its number of variables.

    `reads`: the parts of a record that it can look at.
    """

    nodes: tuple[Node, ...]
    single: Expression | None
    variables: int
    reads: Parts


def parse(text: str) -> Program:
    """Compiles the template. Raises ConfigError that names line and column."""
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self.source = Source(text)
        self.parts = split(self.source)
        self.at = 0
        self.scopes: list[dict[str, int]] = [{"$": 0}]
        self.variables = 1
        self.loops = 0
        self.blocks = 0
        """Depth of `with` and `range`: outside them dot is the record."""
        self.tokens: tuple[Token, ...] = ()
        self.pos = 0
        self.reads = NOTHING

    def program(self) -> Program:
        nodes, end = self._nodes(())
        assert end is None
        only = self.parts[0] if len(self.parts) == 1 else None
        single = None
        if isinstance(only, Action) and only.tokens[0].kind != "variable":
            self._open(only)
            word = self._peek()
            if word.kind == "name" and word.text in (*_BLOCKS, "end", "else", "break", "continue"):
                return Program(tuple(nodes), None, self.variables, self.reads)
            single = self._pipeline()
        return Program(tuple(nodes), single, self.variables, self.reads)

    # Blocks

    def _nodes(self, ends: tuple[str, ...]) -> tuple[list[Node], str | None]:
        """Returns the nodes up to one of `ends`, and that word. The word is consumed; the rest of its action is not."""
        nodes: list[Node] = []
        opened_at = self.parts[self.at - 1].at if ends else 0  # type: ignore[union-attr]
        while self.at < len(self.parts):
            part = self.parts[self.at]
            self.at += 1
            if isinstance(part, str):
                nodes.append(code.literal(part))
                continue
            self._open(part)
            word = self._peek()
            if word.kind == "name" and word.text in ("end", "else"):
                if word.text not in ends:
                    raise self._error(word, f"{word.text} closes nothing here")
                self._next()
                return nodes, word.text
            nodes.append(self._action(word))
        if ends:
            raise self.source.error(opened_at, "the block is not closed with {{ end }}")
        return nodes, None

    def _action(self, word: Token) -> Node:
        if word.kind == "name" and word.text in _BLOCKS:
            self._next()
            return self._block(word.text)
        if word.kind == "name" and word.text in (BREAK, CONTINUE):
            self._next()
            self._close()
            if not self.loops:
                raise self._error(word, f"{word.text} stands outside a range")
            return lambda dot, env, out: word.text
        if word.kind == "name" and word.text in _UNSUPPORTED:
            raise self._error(word, f"{word.text} is not supported: a template here is one piece")
        slot = self._declaration()
        value = self._pipeline()
        self._close()
        return code.assign(slot, value) if slot is not None else code.print_(value)

    def _block(self, kind: str) -> Node:
        self.scopes.append({})
        try:
            if kind == "range":
                return self._range()
            slot = self._declaration()
            value = self._pipeline()
            self._close()
            if slot is not None:
                value = code.keep(slot, value)
            deeper = kind == "with"
            self.blocks += deeper
            body, end = self._nodes(("end", "else"))
            self.blocks -= deeper
            other = self._else(end, kind)
            return (code.with_ if deeper else code.if_)(value, body, other)
        finally:
            self.scopes.pop()

    def _else(self, end: str | None, kind: str) -> list[Node]:
        if end == "end":
            self._close()
            return []
        word = self._peek()
        if kind != "range" and word.kind == "name" and word.text == kind:
            self._next()
            return [self._block(kind)]
        self._close()
        nodes, _ = self._nodes(("end",))
        self._close()
        return nodes

    def _range(self) -> Node:
        names: list[str] = []
        if self._peek().kind == "variable":
            mark = self.pos
            names = [self._next().text]
            if self._peek().text == "," and self._peek(1).kind == "variable":
                self._next()
                names.append(self._next().text)
            if self._peek().text != ":=":
                names, self.pos = [], mark
            else:
                self._next()
        value = self._pipeline()
        self._close()
        slots = [self._declare(name) for name in names]
        self.blocks += 1
        self.loops += 1
        body, end = self._nodes(("end", "else"))
        self.blocks -= 1
        self.loops -= 1
        other = self._else(end, "range")
        element = slots[-1] if slots else None
        position = slots[0] if len(slots) == 2 else None
        return code.loop(value, body, other, element, position)

    # Pipelines

    def _declaration(self) -> int | None:
        word, sign = self._peek(), self._peek(1)
        if word.kind != "variable" or sign.text not in (":=", "="):
            return None
        self._next()
        self._next()
        return self._declare(word.text) if sign.text == ":=" else self._variable(word)

    def _declare(self, name: str) -> int:
        self.scopes[-1][name] = self.variables
        self.variables += 1
        return self.variables - 1

    def _variable(self, token: Token) -> int:
        for scope in reversed(self.scopes):
            if token.text in scope:
                return scope[token.text]
        raise self._error(token, f"the variable {token.text} is not defined")

    def _pipeline(self) -> Expression:
        value = self._command(None)
        while self._peek().text == "|":
            self._next()
            value = self._command(value)
        word = self._peek()
        if word.kind != "end" and word.text != ")":
            raise self._error(word, f"{word.text!r} was not expected here")
        return value

    def _command(self, piped: Expression | None) -> Expression:
        word = self._peek()
        if word.kind == "name" and word.text not in ("true", "false", "nil"):
            function = FUNCTIONS.get(word.text)
            if function is None:
                raise self._error(word, f"there is no function {word.text!r} in templates")
            self._next()
            arguments: list[Expression] = []
            while self._peek().kind != "end" and self._peek().text not in ("|", ")"):
                arguments.append(self._operand())
            if piped is not None:
                arguments.append(piped)
            if not function.least <= len(arguments) <= function.most:
                wanted = f"{function.least}" if function.least == function.most else f"at least {function.least}"
                raise self._error(word, f"{word.text} takes {wanted} arguments, not {len(arguments)}")
            return ex.call(word.text, function.call, arguments)
        if piped is not None:
            raise self._error(word, "only a function can take the value of a pipeline")
        value = self._operand()
        following = self._peek()
        if following.kind != "end" and following.text not in ("|", ")"):
            raise self._error(following, f"{following.text!r} was not expected: only functions take arguments")
        return value

    def _operand(self) -> Expression:  # noqa: PLR0911, PLR0912 - one case per kind of token
        token = self._next()
        try:
            match token.kind:
                case "string":
                    return ex.constant(unquote(token.text))
                case "char":
                    return ex.constant(ord(unquote(token.text)))
                case "number":
                    return ex.constant(number(token.text))
        except (ValueError, TypeError, OverflowError) as error:
            raise self._error(token, f"{token.text} is no value: {error}") from None
        match token.kind, token.text:
            case "field", _:
                names = [token.text[1:], *self._glued_fields()]
                if not self.blocks and names[0] not in ex.RECORD_FIELDS:
                    known = ", ".join("." + name for name in ex.RECORD_FIELDS)
                    raise self._error(token, f"a record has no field {token.text}; it has {known}")
                if names[0] in ex.RECORD_FIELDS:
                    # Inside a block dot is a part of the value that opened it, unless it is the record itself.
                    self.reads |= parts_of(names)
                return ex.dot_field(names)
            case "variable", _:
                names = self._glued_fields()
                if token.text == "$":
                    self.reads |= parts_of(names)
                return ex.fields(ex.variable(self._variable(token)), names)
            case "symbol", ".":
                if not self.blocks:
                    self.reads |= EVERYTHING
                return ex.dot()
            case "symbol", "(":
                inner = self._pipeline()
                if self._peek().text != ")":
                    raise self._error(token, "the parenthesis is not closed")
                self._next()
                return ex.fields(inner, self._glued_fields())
            case "name", "true" | "false":
                return ex.constant(token.text == "true")
            case "name", "nil":
                return ex.constant(None)
            case "name", name if name in FUNCTIONS and FUNCTIONS[name].least == 0:
                return ex.call(name, FUNCTIONS[name].call, [])
        if token.kind == "end":
            raise self._error(token, "a value is missing before }}")
        raise self._error(token, f"{token.text!r} was not expected here")

    def _glued_fields(self) -> list[str]:
        names = []
        while self._peek().kind == "field" and self._peek().glued:
            names.append(self._next().text[1:])
        return names

    # Tokens

    def _open(self, action: Action) -> None:
        self.tokens, self.pos = action.tokens, 0
        if action.tokens[0].kind == "end":
            raise self.source.error(action.at, "the action is empty")

    def _peek(self, ahead: int = 0) -> Token:
        return self.tokens[min(self.pos + ahead, len(self.tokens) - 1)]

    def _next(self) -> Token:
        token = self._peek()
        self.pos += 1
        return token

    def _close(self) -> None:
        token = self._peek()
        if token.kind != "end":
            raise self._error(token, f"{token.text!r} was not expected here")

    def _error(self, token: Token, reason: str) -> Exception:
        return self.source.error(token.at, reason)
