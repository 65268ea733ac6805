"""Columns of a Delta table: rows in its types, and new columns, which are added by a commit of their own that changes
nothing else of the table. Rows are then appended with all columns, as the table has them.

The library's merge of schemas on append does more: it takes NOT NULL from columns whose values come as Arrow makes
them, and moves the columns of partitions behind the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.tables import no_column, required
from conduit_tasks.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

GENERATED = "delta.generationExpression"
"""Metadata of a column whose values the library makes, if they are not written."""


def known_of(table: Any) -> pa.Schema:
    """Returns the columns of the table, in its order."""
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def fitted(table: pa.Table, known: pa.Schema, *, grows: bool) -> pa.Table:
    """Returns the rows in the types of these columns, with what is new if the table `grows`. Raises Refused."""
    import pyarrow as pa

    from conduit_tasks.connectors.arrow_fit import cast, missing, valued, widened

    new = list(missing((), pa.struct(known), pa.struct(table.schema)))
    if new and not grows:
        raise no_column([f"'{'.'.join(new[0][0])}'"])
    if new:
        _check_names(pa.struct(table.schema))
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name)
        type_ = widened(known.field(name).type, column.type) if name in known.names else valued(column.type)
        if type_ is not None:
            columns[name] = cast(name, column, type_)
    for field in known:
        made = generated(field) and field.name not in columns
        if not (field.nullable or made) and (field.name not in columns or columns[field.name].null_count):
            raise required(field.name)
    if not columns:
        raise Refused("no field of the payload has a value")
    return pa.table(columns)


def _check_names(type_: pa.DataType) -> None:
    """Raises Refused if a field has a NUL in its name: Arrow hands a name over to Delta up to there."""
    import pyarrow as pa

    if pa.types.is_struct(type_):
        for field in type_:
            if "\0" in field.name:
                raise Refused(f"no column of a Delta table can be named {field.name[:50]!r}: that holds a NUL")
            _check_names(field.type)
    elif pa.types.is_list(type_):
        _check_names(type_.value_type)


def new_fields(known: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Returns what rows (in the types of the table, with what is new) have and the table does not have: columns, and
    columns of the table with nothing but their new fields. What has no type in the table yet is not among them: see
    `untyped`."""
    return list(_new(known, rows))


def _new(known: Any, rows: Any) -> Iterator[pa.Field]:
    there = {field.name: field for field in known}
    for field in rows:
        if field.name not in there:
            yield field
        elif (part := _part(there[field.name].type, field.type)) is not None:
            # With NOT NULL as it is: the library would take it away otherwise.
            yield there[field.name].with_type(part).remove_metadata()


def _part(there: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    """Returns the part of a type that the table does not have; None if there is none."""
    import pyarrow as pa

    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        fields = list(_new(there, wanted))
        return pa.struct(fields) if fields else None
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        part = _part(there.value_type, wanted.value_type)
        return None if part is None else pa.list_(there.value_field.with_type(part).remove_metadata())
    return None


def untyped(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether rows have a type where the table has none (`void`), which only a merge of schemas gives it."""
    import pyarrow as pa

    if pa.types.is_null(there):
        return not pa.types.is_null(wanted)
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        types = {field.name: field.type for field in wanted}
        return any(untyped(field.type, types.get(field.name, field.type)) for field in there)
    return pa.types.is_list(there) and pa.types.is_list(wanted) and untyped(there.value_type, wanted.value_type)


def add(table: Any, fields: list[pa.Field]) -> None:
    """Adds columns, or fields within columns, in one commit. Raises the library's errors."""
    import pyarrow as pa

    from conduit_tasks.connectors.delta.log import library

    table.alter.add_columns(library().Schema.from_arrow(pa.schema(fields)).fields)


def whole(rows: pa.Table, known: pa.Schema) -> pa.Table:
    """Returns the rows with every column of the table, in its order. A column that the rows do not have is null; one
    that the library makes is left out."""
    import pyarrow as pa

    fields, columns = [], []
    for field in known:
        if field.name in rows.column_names:
            columns.append(rows.column(field.name))
            fields.append(field.with_type(columns[-1].type).remove_metadata())
        elif not generated(field):
            columns.append(pa.nulls(rows.num_rows, field.type))
            fields.append(field.remove_metadata())
    return pa.table(columns, schema=pa.schema(fields))


def generated(field: pa.Field) -> bool:
    """Returns whether the library makes the values of a column."""
    return GENERATED.encode() in (field.metadata or {})
