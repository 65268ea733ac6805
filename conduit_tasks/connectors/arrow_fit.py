"""Fit of rows to the columns of a Delta or Iceberg table: what is missing, what is too narrow, and a cast that is exact
or refused.

Arrow's own cast refuses most of what does not fit. It says nothing where it leaves out fields of a struct, cuts digits
off a fraction, or takes another number for a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.connectors.column_types import ColumnType
from conduit_tasks.errors import DoesNotFit

Path = tuple[str, ...]
_WHOLE = 1 << 53
"""Limit of the whole numbers that a double holds exactly."""


def valued(type_: pa.DataType) -> pa.DataType | None:
    """Returns the part of a type that has values; None if it has none: null, an empty list or object. Raises
    DoesNotFit if fields within it differ in case only."""
    if pa.types.is_null(type_):
        return None
    if pa.types.is_struct(type_):
        check_case(field.name for field in type_)
        fields = [(field.name, valued(field.type)) for field in type_]
        typed = [(name, of) for name, of in fields if of is not None]
        return pa.struct(typed) if typed else None
    if pa.types.is_list(type_):
        element = valued(type_.value_type)
        return None if element is None else pa.list_(element)
    return type_


def check_case(names: Iterable[str]) -> None:
    """Raises DoesNotFit if two names differ in case only."""
    seen: dict[str, str] = {}
    for name in names:
        if (same := seen.setdefault(name.casefold(), name)) != name:
            raise DoesNotFit(f"fields '{same}' and '{name}' differ in case only, which columns of a table cannot")


def missing(path: Path, there: pa.DataType, new: pa.DataType) -> Iterator[tuple[Path, pa.DataType]]:
    """Yields what values have and a column does not have: where it is, and its type. Types that do not go together are
    left to `cast`. Raises DoesNotFit if names differ in case only."""
    if pa.types.is_null(there):
        # A table may have such a column: what wrote it knew no value yet.
        if (of := valued(new)) is not None:
            yield path, of
    elif pa.types.is_struct(there) and pa.types.is_struct(new):
        types = {field.name: field.type for field in there}
        found = [(field.name, of) for field in new if (of := valued(field.type)) is not None]
        check_case(dict.fromkeys([*types, *(name for name, _ in found)]))
        for name, of in found:
            if name in types:
                yield from missing((*path, name), types[name], of)
            else:
                yield (*path, name), of
    elif _is_list(there) and _is_list(new):
        yield from missing((*path, "element"), there.value_type, new.value_type)


def widened(there: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Returns the type of a column with what is `missing` of the values."""
    if pa.types.is_null(there):
        return valued(new) or there
    if pa.types.is_struct(there) and pa.types.is_struct(new):
        types = {field.name: of for field in new if (of := valued(field.type)) is not None}
        fields = [field.with_type(widened(field.type, types.pop(field.name, field.type))) for field in there]
        return pa.struct([*fields, *(pa.field(name, of) for name, of in types.items())])
    if _is_list(there) and _is_list(new):
        make = pa.large_list if pa.types.is_large_list(there) else pa.list_
        return make(there.value_field.with_type(widened(there.value_type, new.value_type)))
    return there


def too_narrow(
    path: Path, there: pa.DataType, values: pa.ChunkedArray, may: Callable[[ColumnType, ColumnType], bool]
) -> Iterator[tuple[Path, ColumnType]]:
    """Yields the columns, and fields within them, that are too narrow for a value, and what is wide enough: as far as
    one type `may` become the other. What still does not fit is left to `cast`."""
    if pa.types.is_struct(there) and pa.types.is_struct(values.type):
        for field, each in zip(values.type, values.flatten(), strict=True):
            if (n := there.get_field_index(field.name)) >= 0:
                yield from too_narrow((*path, field.name), there.field(n).type, each, may)
    elif _is_list(there) and _is_list(values.type):
        within = pa.chunked_array([chunk.flatten() for chunk in values.chunks], values.type.value_type)
        yield from too_narrow((*path, "element"), there.value_type, within, may)
    elif (type_ := _column_type(there)) is not None and not pa.types.is_nested(values.type):
        wide = type_
        for value in values.to_pylist():
            if wide.unfit(value) and (wider := wide.wider(value)) is not None and may(wide, wider):
                wide = wider
        if wide != type_:
            yield path, wide


def with_types(type_: pa.DataType, types: Mapping[Path, pa.DataType], path: Path = ()) -> pa.DataType:
    """Returns the type of a column with other types at these paths within it (as those of `too_narrow`)."""
    if path in types:
        return types[path]
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(with_types(field.type, types, (*path, field.name))) for field in type_])
    if _is_list(type_):
        make = pa.large_list if pa.types.is_large_list(type_) else pa.list_
        return make(type_.value_field.with_type(with_types(type_.value_type, types, (*path, "element"))))
    return type_


def _column_type(type_: pa.DataType) -> ColumnType | None:
    if pa.types.is_int8(type_) or pa.types.is_int16(type_) or pa.types.is_int32(type_):
        return ColumnType("int", type_.bit_width)
    if pa.types.is_float32(type_):
        return ColumnType("float", 32)
    return ColumnType("decimal", type_.precision, type_.scale) if pa.types.is_decimal(type_) else None


def cast(name: str, column: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> Any:
    """Returns the values of field `name` in the type of a column. Raises DoesNotFit if one does not fit exactly."""
    if column.type == type_:
        return column
    try:
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            _check(chunk, type_)
        if pa.types.is_floating(column.type) and _is_text(type_):
            return pa.array([None if v is None else _digits(v) for v in column.to_pylist()], type_)
        return column.cast(_decimals_as_text(column.type, type_)).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        # ArrowTypeError: an object without a field that the column requires.
        raise DoesNotFit(f"field '{name}' is no {type_}, as the column is: {error}") from None


def _digits(number: float) -> str:
    """Returns a number as text. A whole one has no fraction: it may be one that stood beside a fraction, of which Arrow
    makes fractions both."""
    return str(int(number)) if number.is_integer() and abs(number) <= _WHOLE else repr(number)


def _check(values: pa.Array, wanted: pa.DataType) -> None:
    """Raises ArrowInvalid where Arrow's cast would make another value without a word."""
    of = values.type
    if pa.types.is_struct(of) and pa.types.is_struct(wanted):
        for field, each in zip(of, values.flatten(), strict=True):
            if (n := wanted.get_field_index(field.name)) >= 0:
                _check(each, wanted.field(n).type)
            elif valued(field.type) is not None and each.null_count < len(each):
                raise pa.ArrowInvalid(f"the column has no field '{field.name}'")
    elif _is_list(of) and _is_list(wanted):
        elements = values.flatten()
        if elements.null_count and not wanted.value_field.nullable:
            raise pa.ArrowInvalid("an element has no value, and the column requires one")
        _check(elements, wanted.value_type)
    elif _is_number(of) and pa.types.is_temporal(wanted):
        raise pa.ArrowInvalid("a number has no unit of time; write the time as text (ISO 8601)")
    elif _is_number(of) and pa.types.is_boolean(wanted):
        _same(values, values.cast(wanted).cast(of))
    elif pa.types.is_float64(of) and pa.types.is_float32(wanted):
        # As text: 0.1 is a number that both types have, and their bits differ.
        _same(values, values.cast(wanted).cast(pa.string()).cast(of))
    elif _is_text(of) and _is_number(wanted):
        for text, number in zip(values.to_pylist(), values.cast(wanted).cast(pa.string()).to_pylist(), strict=True):
            if text is not None and not _equal(text, number):
                raise pa.ArrowInvalid(f"{text!r} would be {number}")


def _same(values: pa.Array, again: pa.Array) -> None:
    differ = pc.not_equal(values, again)
    if pc.any(differ).as_py():
        n = pc.index(differ, True).as_py()
        raise pa.ArrowInvalid(f"{values[n]} would be {again[n]}")


def _equal(text: str, number: str) -> bool:
    """Returns whether two texts are of the same number; NaN is."""
    try:
        one, other = Decimal(text), Decimal(number)
    except InvalidOperation:
        return False
    return one == other or (one.is_nan() and other.is_nan())


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
    if _is_list(type_) and _is_list(wanted):
        return pa.list_(_decimals_as_text(type_.value_type, wanted.value_type))
    return type_


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_)


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_)
