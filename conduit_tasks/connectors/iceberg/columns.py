"""Columns of an Iceberg table: made of the first values, added for new fields, and filled with rows.

Iceberg has no column without a type, so a field whose values have none yet (null, an empty list or map) gets no column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from conduit_tasks.errors import ConfigError, Refused

Path = tuple[str, ...]


def type_of(type_: pa.DataType, ids: Iterator[int]) -> IcebergType | None:
    """Returns the type of a column for values of JSON; None if they have none. Raises Refused."""
    if pa.types.is_null(type_):
        return None
    if pa.types.is_struct(type_):
        fields = [(field.name, type_of(field.type, ids)) for field in type_]
        typed = [NestedField(next(ids), name, of, required=False) for name, of in fields if of is not None]
        return StructType(*typed) if typed else None
    if pa.types.is_list(type_):
        element = type_of(type_.value_type, ids)
        return None if element is None else ListType(next(ids), element, element_required=False)
    if pa.types.is_map(type_):
        value = type_of(type_.item_type, ids)
        return None if value is None else MapType(next(ids), StringType(), next(ids), value, value_required=False)
    for fits, of in _SIMPLE:
        if fits(type_):
            return of
    raise Refused(f"there is no column of Iceberg for values of type {type_}; write them as text")


_SIMPLE = (
    (pa.types.is_string, StringType()),
    (pa.types.is_boolean, BooleanType()),
    (pa.types.is_int64, LongType()),
    (pa.types.is_float64, DoubleType()),
    (pa.types.is_binary, BinaryType()),
)


def new_schema(table: pa.Table, key: Sequence[str], by: Sequence[str]) -> tuple[Schema, PartitionSpec]:
    """Returns the columns of a new table, and its partitions by the values of `by`; the columns of `key` are required.

    Raises Refused if no field has a value, or one of `key` has none; ConfigError if one of `by` is no column.
    """
    ids = count(1)
    fields: dict[str, NestedField] = {}
    for name in table.column_names:
        of = type_of(table.schema.field(name).type, ids)
        if of is not None:
            _check_case(name, fields)
            fields[name] = NestedField(next(ids), name, of, required=name in key)
    if not fields:
        raise Refused("no field of the payload has a value")
    if missing := [name for name in key if name not in fields]:
        raise Refused(f"the record has no {', '.join(missing)}, which is the key of the table")
    if missing := [name for name in by if name not in fields]:
        raise ConfigError(
            f"iceberg: option 'partition-by' names {', '.join(missing)}, which the first records do not have"
        )
    parts = [
        PartitionField(fields[name].field_id, PARTITION_FIELD_ID_START + n, IdentityTransform(), name)
        for n, name in enumerate(by)
    ]
    schema = Schema(*fields.values(), identifier_field_ids=[fields[name].field_id for name in key])
    return schema, PartitionSpec(*parts)


def grow(transaction: Any, table: pa.Table, fixed: bool) -> None:
    """Adds columns, and fields within columns, that the rows have values for and the table does not have. Raises
    Refused if the columns are `fixed`."""
    schema: Schema = transaction.table_metadata.schema()
    arrow = pa.struct([table.schema.field(name) for name in table.column_names])
    missing = list(_missing((), schema.as_struct(), arrow))
    if not missing:
        return
    if fixed:
        raise Refused(f"the table has no column '{'.'.join(missing[0][0])}'; add it, or write 'schema: merge'")
    with transaction.update_schema() as update:
        for path, of in missing:
            update.add_column(path, of)


def _missing(path: Path, of: IcebergType, arrow: pa.DataType) -> Iterator[tuple[Path, IcebergType]]:
    """Yields what rows of a type have and a column does not. Types that do not go together are left to `fitted`."""
    if isinstance(of, StructType) and pa.types.is_struct(arrow):
        fields = {field.name: field.field_type for field in of.fields}
        for field in arrow:
            if field.name in fields:
                yield from _missing((*path, field.name), fields[field.name], field.type)
            elif (new := type_of(field.type, count(1))) is not None:
                _check_case(field.name, fields)
                fields[field.name] = new
                yield (*path, field.name), new
    elif isinstance(of, ListType) and pa.types.is_list(arrow):
        yield from _missing((*path, "element"), of.element_type, arrow.value_type)
    elif isinstance(of, MapType) and pa.types.is_map(arrow):
        yield from _missing((*path, "value"), of.value_type, arrow.item_type)


def _check_case(name: str, others: Any) -> None:
    for other in others:
        if other != name and other.casefold() == name.casefold():
            raise Refused(f"fields '{other}' and '{name}' differ in case only, which columns of a table cannot")


def fitted(schema: Schema, table: pa.Table) -> pa.Table:
    """Returns the rows in the table's own types, after `grow`. Raises Refused."""
    columns, types = [], schema.as_arrow()
    valued = {field.name for field in table.schema if not pa.types.is_null(field.type)}
    if not valued.intersection(types.names):
        raise Refused("no field of the payload has a value")
    for field in types:
        if field.name in valued:
            column = cast(field.name, table.column(field.name), field.type)
        else:
            column = pa.nulls(table.num_rows, field.type)
        if column.null_count and not field.nullable:
            raise Refused(f"field '{field.name}' has no value, and the table's column requires one")
        columns.append(column)
    return pa.table(columns, schema=types)


def cast(name: str, column: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> Any:
    """Returns values in the type of a column. Raises Refused if one does not fit."""
    try:
        return column.cast(_decimals_as_text(column.type, type_)).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(f"field '{name}' is no {type_}, as the column is: {error}") from None


def _decimals_as_text(type_: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Returns the type of values with text wherever a decimal is wanted: from a double digits would be cut off without
    a word, and a small whole number would have no room."""
    if pa.types.is_decimal(wanted):
        return type_ if pa.types.is_decimal(type_) or pa.types.is_nested(type_) else pa.string()
    if pa.types.is_struct(type_) and pa.types.is_struct(wanted):
        there = {field.name: field.type for field in wanted}
        return pa.struct(
            [
                field.with_type(_decimals_as_text(field.type, there[field.name])) if field.name in there else field
                for field in type_
            ]
        )
    if pa.types.is_list(type_) and (pa.types.is_list(wanted) or pa.types.is_large_list(wanted)):
        return pa.list_(_decimals_as_text(type_.value_type, wanted.value_type))
    return type_
