"""Columns of an Iceberg table: made of the first values, added for new fields, widened as `schema` says, and filled
with rows.

Iceberg has no column without a type, so a field whose values have none yet (null, an empty list or map) gets no column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from conduit_tasks.connectors.arrow_fit import cast, missing, too_narrow
from conduit_tasks.connectors.column_types import ColumnType
from conduit_tasks.connectors.tables import EVOLVE, grows, no_column, required
from conduit_tasks.errors import ConfigError, DoesNotFit, Refused


def type_of(type_: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Returns the type of a column for values of JSON, which have types (`valued`). Raises Refused."""
    if pa.types.is_struct(type_):
        fields = [(field.name, type_of(field.type, ids)) for field in type_]
        return StructType(*(NestedField(next(ids), name, of, required=False) for name, of in fields))
    if pa.types.is_list(type_):
        element = type_of(type_.value_type, ids)
        return ListType(next(ids), element, element_required=False)
    if pa.types.is_map(type_):
        value = type_of(type_.item_type, ids)
        return MapType(next(ids), StringType(), next(ids), value, value_required=False)
    for fits, of in _SIMPLE:
        if fits(type_):
            return of
    raise DoesNotFit(f"there is no column of Iceberg for values of type {type_}; write them as text")


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
    for name, of in missing((), pa.struct([]), pa.struct(table.schema)):
        typed = type_of(of, ids)
        fields[name[0]] = NestedField(next(ids), name[0], typed, required=name[0] in key)
    if not fields:
        raise Refused("no field of the payload has a value")
    if absent := [name for name in key if name not in fields]:
        raise Refused(f"the record has no {', '.join(absent)}, which is the key of the table")
    if absent := [name for name in by if name not in fields]:
        raise ConfigError(
            f"iceberg: option 'partition-by' names {', '.join(absent)}, which the first records do not have"
        )
    parts = [
        PartitionField(fields[name].field_id, PARTITION_FIELD_ID_START + n, IdentityTransform(), name)
        for n, name in enumerate(by)
    ]
    schema = Schema(*fields.values(), identifier_field_ids=[fields[name].field_id for name in key])
    return schema, PartitionSpec(*parts)


def grow(transaction: Any, table: pa.Table, settings: Mapping[str, str]) -> None:
    """Adds columns, and fields within columns, that the rows have values for and the table does not have; widens those
    that are too narrow, as option `schema` says. Raises DoesNotFit if the columns are to stay as they are."""
    there = transaction.table_metadata.schema().as_arrow()
    new = list(missing((), pa.struct(there), pa.struct(table.schema)))
    if new and not grows(settings):
        raise no_column([f"'{'.'.join(new[0][0])}'"])
    wider: list[tuple[tuple[str, ...], ColumnType]] = []
    if settings["schema"] == EVOLVE:
        for name in set(there.names).intersection(table.column_names):
            wider += too_narrow((name,), there.field(name).type, table.column(name), _may)
    if new or wider:
        with transaction.update_schema() as update:
            for path, of in new:
                update.add_column(path, type_of(of, count(1)))
            for path, type_ in wider:
                update.update_column(path, _TYPES[type_.kind](type_))


_DIGITS = 38
"""Limit of the digits of a decimal (Iceberg)."""
_TYPES: dict[str, Callable[[ColumnType], IcebergType]] = {
    "int": lambda _: LongType(),
    "float": lambda _: DoubleType(),
    "decimal": lambda type_: DecimalType(type_.size or 0, type_.scale),
}


def _may(one: ColumnType, other: ColumnType) -> bool:
    """Returns whether Iceberg lets one type become the other: a decimal keeps the digits of its fraction."""
    return (
        other.kind in _TYPES
        and one.scale == other.scale
        and (other.size or 0) <= (_DIGITS if other.kind == "decimal" else 64)
    )


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
            raise required(field.name)
        columns.append(column)
    return pa.table(columns, schema=types)
