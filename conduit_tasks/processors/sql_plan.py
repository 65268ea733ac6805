"""Refuses a statement that loses track of which record a row is, and says which columns it leaves as they are, by
Spark's text of the analysed plan (EXPLAIN EXTENDED).

That text is the same from a local context and from a Connect server, and nothing is run for it. Its form: a node per
line, indented by three columns per level; a node's subqueries are indented by six columns. A plan that is not
understood is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conduit_tasks.errors import ConfigError

_PASS = frozenset(("Project", "Filter", "SubqueryAlias", "ResolvedHint", "View"))
"""Nodes that pass rows on one by one."""

_REASONS = {
    "Aggregate": "it aggregates (GROUP BY, DISTINCT, count and the like)",
    "Distinct": "it uses DISTINCT",
    "Deduplicate": "it removes duplicates",
    "Sort": "it sorts (ORDER BY, SORT BY); the order of records is the source's",
    "GlobalLimit": "it uses LIMIT",
    "LocalLimit": "it uses LIMIT",
    "Tail": "it uses LIMIT",
    "Offset": "it uses OFFSET",
    "Window": "it uses a window function",
    "Union": "it uses UNION",
    "Intersect": "it uses INTERSECT",
    "Except": "it uses EXCEPT",
    "Sample": "it samples",
    "Pivot": "it pivots",
    "Expand": "it groups by several sets",
}

_WAYS = ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI")

_VIEW = "View (`records`, ["
_COLUMN = re.compile(r"\b(\w++)#(\d++)L?(?=, |\])")
_ALIAS = re.compile(r"(?:\[|, )\w+#(\d+)L? AS \w+#(\d+)L?(?=, |\])")
_LINE = re.compile(r"((?:[ :]  )*(?:[+:]- )?)(\S.*)?$")
_ANALYSED, _OPTIMIZED = "== Analyzed Logical Plan ==\n", "\n== Optimized Logical Plan =="


@dataclass(frozen=True)
class Facts:
    """Facts about a statement. `same`: result columns that are the view's own, unchanged. `repeats`: whether a record
    may come several times."""

    same: set[str]
    repeats: bool


def examine(spark: Any, query: str) -> Facts:
    """Returns facts about the statement without running it; the view `records` must exist. Raises ConfigError if it is
    no query or the records' identity is lost, AnalysisException if Spark does not accept it."""
    plan = _analysed(spark, query)
    walk = _Walk(plan)
    if not walk.view or not walk.reads_records(plan):
        raise ConfigError("sql: the statement does not read the view records")
    walk.down(plan)
    # The outermost node is our own SELECT *, which passes the statement's columns on under their own numbers.
    found = {name: walk.origin(int(number)) for name, number in _COLUMN.findall(plan.text)}
    same = {name for name, origin in found.items() if walk.view.get(name) == origin}
    if "position" in found and "position" not in same:
        raise ConfigError(
            "sql: position belongs to the source and cannot be changed; leave it out or select it as it is"
        )
    if "_id" in found and "_id" not in same:
        raise ConfigError("sql: _id says which record a row is and cannot be computed; select it as it is")
    return Facts(same, walk.repeats)


def _analysed(spark: Any, query: str) -> _Node:
    from pyspark.errors import AnalysisException, ParseException

    spark.conf.set("spark.sql.debug.maxToStringFields", 100_000)
    try:
        # The query is on lines of its own: it may end with a comment.
        said = _explained(spark, f"SELECT * FROM (\n{query}\n)")  # noqa: S608  the user's own
    except ParseException:
        parsed = _explained(spark, query).partition("\n")[2]
        name = re.sub(r"\W", "", parsed.split(maxsplit=1)[0])
        raise ConfigError(f"sql: the statement must be a query over the view records, not {name}") from None
    after, found, _ = said.partition(_ANALYSED)[2].partition(_OPTIMIZED)
    if not found or re.match(r"[\w.]+Exception: ", after):
        raise AnalysisException(message=after.partition(": ")[2] or "it cannot be analysed")
    # The first line is the schema.
    return _tree(after.partition("\n")[2])


def _explained(spark: Any, query: str) -> str:
    return str(spark.sql(f"EXPLAIN EXTENDED {query}").collect()[0][0])


@dataclass
class _Node:
    """A node of the plan. `text`: its line; `inner`: its subqueries."""

    text: str
    depth: int
    children: list[_Node] = field(default_factory=list)
    inner: list[_Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.text.split(maxsplit=1)[0].lstrip("'~")

    def below(self) -> Iterator[_Node]:
        yield from (*self.inner, *self.children)

    def all(self) -> Iterator[_Node]:
        yield self
        for node in self.below():
            yield from node.all()


def _tree(text: str) -> _Node:
    path: list[_Node] = []
    root: _Node | None = None
    for line in text.strip("\n").splitlines():
        found = _LINE.match(line)
        prefix, rest = (found[1], found[2] or "") if found else ("", line)
        depth = len(prefix) // 3
        if root is not None and depth == 0:
            path[-1].text += f" {line}"  # the next line of a text in the statement
            continue
        node = _Node(rest, depth)
        while path and path[-1].depth >= depth:
            path.pop()
        if root is None:
            root = node
        elif path:
            (path[-1].children if depth - path[-1].depth == 1 else path[-1].inner).append(node)
        path.append(node)
    if root is None:
        raise ConfigError("sql: Spark gives no plan of the statement")
    return root


class _Walk:
    def __init__(self, plan: _Node) -> None:
        views = [node for node in plan.all() if _is_view(node)]
        self.view = {name: int(number) for node in views for name, number in _COLUMN.findall(node.text)}
        """The view's columns and their numbers. If it is read twice, the statement is refused further on."""
        self.named = {_number(node): node for node in plan.all() if node.name == "CTERelationDef"}
        self.aliases: dict[int, int] = {}
        self.repeats = False

    def reads_records(self, node: _Node) -> bool:
        """Returns whether the view is below this node, subqueries included."""
        if _is_view(node):
            return True
        return any(self.reads_records(each) for each in self._below(node))

    def _below(self, node: _Node) -> list[_Node]:
        if node.name == "WithCTE":
            return node.children[-1:]  # the definitions count where they are read
        if node.name == "CTERelationRef":
            return [self.named[_number(node)]]
        return list(node.below())

    def down(self, node: _Node) -> None:
        """Checks the nodes between the result and the view, and collects the aliases of columns on the way."""
        if _is_view(node):
            return
        name = node.name
        if any(self.reads_records(subquery) for subquery in node.inner):
            raise _lost("it reads records in a subquery")
        if name == "Join":
            self._join(node)
            return
        if name == "Generate":
            self.repeats = True
        elif name not in _PASS and name not in ("WithCTE", "CTERelationRef", "CTERelationDef"):
            raise _lost(_REASONS.get(name, f"it contains {name}"))
        if name == "Project":
            self.aliases.update({int(new): int(old) for old, new in _ALIAS.findall(node.text)})
        for child in self._below(node):
            if child not in node.inner:
                self.down(child)

    def origin(self, number: int) -> int:
        """Returns the number of the column for which this one is an alias."""
        while number in self.aliases:
            number = self.aliases[number]
        return number

    def _join(self, node: _Node) -> None:
        left, right = node.children
        in_left, in_right = self.reads_records(left), self.reads_records(right)
        if in_left and in_right:
            raise _lost("it joins records with itself; join it with a static table only")
        kind = re.split(r"[\s,]", node.text, maxsplit=2)[1]
        way = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).upper()
        allowed = _WAYS if in_left else ("INNER", "CROSS", "RIGHT OUTER")
        if way not in allowed:
            raise _lost(f"the join ({way}) makes rows that are no record, or keeps only the other table's")
        self.repeats = self.repeats or way not in ("LEFT SEMI", "LEFT ANTI")
        self.down(left if in_left else right)


def _is_view(node: _Node) -> bool:
    return node.text.startswith(_VIEW)


def _number(node: _Node) -> int:
    """Returns the number of a named part of a statement (WITH), or the number to which a reference points."""
    return int(re.split(r"[\s,]+", node.text)[1])


def _lost(reason: str) -> ConfigError:
    return ConfigError(
        f"sql: the statement loses track of which record a row is: {reason}. Allowed are projections, WHERE, explode "
        "and joins with static tables"
    )
