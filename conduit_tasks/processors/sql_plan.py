"""What a statement does to the identity of records, read off Spark's analysed plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conduit_tasks.errors import ConfigError

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"

_PASS = frozenset(("Project", "Filter", "SubqueryAlias", "ResolvedHint", "View"))
"""Nodes that hand on rows one by one."""

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


@dataclass(frozen=True)
class Facts:
    """`same`: result columns that are the view's own, untouched. `repeats`: a record may come several times."""

    same: set[str]
    repeats: bool


def refuse_commands(spark: Any, query: str) -> None:
    """Raises ConfigError where the text is anything but a query: Spark would run a command at once."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)
    loader = plan.getClass().getClassLoader()
    kinds = [loader.loadClass(f"{_LOGICAL}.{name}") for name in ("Command", "ParsedStatement")]
    pending = [plan]
    while pending:
        node = pending.pop()
        if any(kind.isInstance(node) for kind in kinds):
            raise ConfigError(f"sql: the statement must be a query over the view records, not {_name(node)}")
        pending.extend(_list(node.children()))


def examine(spark: Any, records: Any, result: Any) -> Facts:
    """Walks from the result down to the view. Raises ConfigError where the records' identity is lost."""
    inline = spark._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False)
    plan = inline.apply(result._jdf.queryExecution().analyzed())
    view = {name: _expression_id(a) for name, a in _output(records._jdf.queryExecution().analyzed())}
    walk = _Walk(set(view.values()))
    if not walk.reads_records(plan):
        raise ConfigError("sql: the statement does not read the view records")
    walk.down(plan)
    found = {name: walk.origin(_expression_id(attribute)) for name, attribute in _output(plan)}
    same = {name for name, origin in found.items() if name in view and view[name] == origin}
    if "position" in found and "position" not in same:
        raise ConfigError(
            "sql: position belongs to the source and cannot be changed; leave it out or select it as it is"
        )
    if "_id" in found and "_id" not in same:
        raise ConfigError("sql: _id says which record a row is and cannot be computed; select it as it is")
    return Facts(same, walk.repeats)


class _Walk:
    def __init__(self, view_ids: set[int]) -> None:
        self.view_ids = view_ids
        self.aliases: dict[int, int] = {}
        self.repeats = False

    def reads_records(self, node: Any) -> bool:
        """Whether the view is below this node, in its subqueries included."""
        if self._is_view(node):
            return True
        below = [*_list(node.children()), *_list(node.subqueries())]
        return any(self.reads_records(each) for each in below)

    def down(self, node: Any) -> None:
        """Checks the nodes between the result and the view, collecting what renames columns on the way."""
        if self._is_view(node):
            return
        name = _name(node)
        for subquery in _list(node.subqueries()):
            if self.reads_records(subquery):
                raise _lost("it reads records in a subquery")
        if name == "Join":
            self._join(node)
            return
        if name == "Generate":
            self.repeats = True
        elif name not in _PASS:
            raise _lost(_REASONS.get(name, f"it contains {name}"))
        if name == "Project":
            for expression in _list(node.projectList()):
                if _name(expression) == "Alias" and _name(expression.child()) == "AttributeReference":
                    self.aliases[_expression_id(expression)] = _expression_id(expression.child())
        for child in _list(node.children()):
            self.down(child)

    def origin(self, expression_id: int) -> int:
        """The id of the column that this one is another name of."""
        while expression_id in self.aliases:
            expression_id = self.aliases[expression_id]
        return expression_id

    def _join(self, node: Any) -> None:
        left, right = node.left(), node.right()
        in_left, in_right = self.reads_records(left), self.reads_records(right)
        if in_left and in_right:
            raise _lost("it joins records with itself; join it with a static table only")
        way = node.joinType().sql()
        allowed = _WAYS if in_left else ("INNER", "CROSS", "RIGHT OUTER")
        if way not in allowed:
            raise _lost(f"the join ({way}) makes rows that are no record, or keeps only the other table's")
        self.repeats = self.repeats or way not in ("LEFT SEMI", "LEFT ANTI")
        self.down(left if in_left else right)

    def _is_view(self, node: Any) -> bool:
        return _name(node) == "View" and node.isTempView() and node.desc().identifier().table() == "records"


def _lost(reason: str) -> ConfigError:
    return ConfigError(
        f"sql: the statement loses track of which record a row is: {reason}. Allowed are projections, WHERE, explode "
        "and joins with static tables"
    )


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _list(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.length())]


def _output(plan: Any) -> list[tuple[str, Any]]:
    return [(str(attribute.name()), attribute) for attribute in _list(plan.output())]


def _expression_id(expression: Any) -> int:
    return int(expression.exprId().id())
