"""The micro-batch as the DataFrame that `sql` and `python` (mode frame) see, and the way back.

Columns:

| column | type | meaning |
|---|---|---|
| `_id` | string | `slice:n:ord`, the record's number in the micro-batch; a result must keep it |
| `position` | binary | the source's own; read only |
| `operation` | string | create, update, delete, snapshot |
| `metadata` | map<string,string> | the record's own (what the whole slice shares is not in it) |
| `key` | string | JSON text if it is structured, raw data decoded as UTF-8 otherwise |
| `payload` | string | the payload after, likewise |
| `after` | struct | only with a schema: the payload parsed by it |
| `_row` | struct | the record as it is spooled; a result that keeps it (`SELECT *`) spares a join |

The columns `operation`, `metadata`, `key`, `payload` and `after` of a result are taken over if they differ; columns
that it does not have stay as they were. Text stays structured only if it is a JSON object; a struct or map becomes
structured data. `payload` and `after` are the same data, so only one of them may be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import OPERATIONS
from conduit_tasks.record.schema import AFTER_STRUCTURED, BEFORE_STRUCTURED, KEY_STRUCTURED, SPOOL_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHANGEABLE = ("operation", "metadata", "key", "payload", "after")
COLUMNS = ("_id", "position", *CHANGEABLE, "_row")


def of(frame: DataFrame, schema: str | None) -> DataFrame:
    """Returns the view over a frame of SPOOL_SCHEMA columns; `schema` is the DDL of `after`."""
    from pyspark.sql import functions as f

    names = f.array(*(f.lit(name) for name in OPERATIONS))
    columns = [
        f.concat_ws(":", "slice", "n", "ord").alias("_id"),
        f.col("position"),
        f.element_at(names, f.col("operation").cast("int") + 1).alias("operation"),
        f.col("metadata"),
        f.col("key").cast("string").alias("key"),
        f.col("after").cast("string").alias("payload"),
    ]
    if schema:
        columns.append(f.from_json(f.col("after").cast("string"), schema).alias("after"))
    return frame.select(*columns, f.struct(*SPOOL_SCHEMA.names).alias("_row"))


def take_over(what: str, records: DataFrame, result: DataFrame, *, same: set[str], repeats: bool) -> DataFrame:
    """Returns `result` as a SPOOL_SCHEMA frame, sorted by (slice, n, ord).

    `same`: columns of the result that are the view's, unchanged. `repeats`: whether an `_id` may come several times;
    then all records of that (slice, n) are renumbered by `ord` from 0, in the order in which they came.
    Raises ConfigError if a column is missing, unknown or of the wrong type; an `_id` that is not the view's fails
    the job.
    """
    from pyspark.sql import functions as f

    _check_columns(what, result.columns)
    changed = {name for name in result.columns if name in CHANGEABLE and name not in same}
    if {"payload", "after"} <= changed:
        raise ConfigError(f"{what}: payload and after are the same data; change one of them")
    types = {name: result.schema[name].dataType for name in changed}
    if repeats:
        result = result.withColumn("_at", f.monotonically_increasing_id())
    if not {"_id", "_row"} <= same:
        result = _joined(result, records)
    row = f.col("_row")
    rows = result.select(
        row["slice"].alias("slice"),
        row["n"].alias("n"),
        row["ord"].alias("ord"),
        row["position"].alias("position"),
        (_operation(what, types) if "operation" in changed else row["operation"]).alias("operation"),
        (_metadata(what, types) if "metadata" in changed else row["metadata"]).alias("metadata"),
        *_data(what, row, changed, types),
        *([f.col("_at")] if repeats else []),
    )
    if repeats:
        rows = _renumbered(rows)
    return rows.select(*SPOOL_SCHEMA.names).orderBy("slice", "n", "ord")


def _check_columns(what: str, columns: list[str]) -> None:
    if "_id" not in columns:
        raise ConfigError(f"{what}: the result must keep the column _id; add it to the SELECT list")
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"{what}: a record has no column {', '.join(unknown)}; it has {', '.join(COLUMNS)} "
            "(after with the option schema). Put values into metadata, payload or after"
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ConfigError(
            f"{what}: the result has {', '.join(twice)} twice; write SELECT * EXCEPT ({', '.join(twice)}), … instead"
        )


def _joined(result: DataFrame, records: DataFrame) -> DataFrame:
    """Returns the result with `_row` looked up by `_id`."""
    from pyspark.sql import functions as f

    kept = result.drop("_row").withColumnRenamed("_id", "_wanted")
    rows = records.select(f.col("_id").alias("_found"), f.col("_row"))
    joined = kept.join(rows, f.col("_wanted") == f.col("_found"), "left")
    unknown = f.raise_error(f.concat(f.lit("the result has an _id of no record: "), f.col("_wanted")))
    return joined.withColumn("_row", f.when(f.col("_found").isNull(), unknown).otherwise(f.col("_row")))


def _operation(what: str, types: dict[str, Any]) -> Column:
    from pyspark.sql import functions as f

    _must_be(what, "operation", types, "string")
    column = f.col("operation")
    code = f.array_position(f.array(*(f.lit(name) for name in OPERATIONS)), column)
    unknown = f.raise_error(f.concat(f.lit("the result has an unknown operation: "), f.coalesce(column, f.lit("null"))))
    return f.when(code > 0, (code - 1).cast("byte")).otherwise(unknown.cast("byte"))


def _metadata(what: str, types: dict[str, Any]) -> Column:
    from pyspark.sql import functions as f

    _must_be(what, "metadata", types, "map")
    return f.col("metadata").cast("map<string,string>")


def _must_be(what: str, name: str, types: dict[str, Any], kind: str) -> None:
    if types[name].typeName() != kind:
        raise ConfigError(f"{what}: the column {name} must be a {kind}, not {types[name].simpleString()}")


def _data(what: str, row: Column, changed: set[str], types: dict[str, Any]) -> list[Column]:
    """Returns the columns key, before, after and shape."""
    shape = row["shape"].cast("int")
    key, key_bit = row["key"], shape.bitwiseAND(KEY_STRUCTURED)
    after, after_bit = row["after"], shape.bitwiseAND(AFTER_STRUCTURED)
    if "key" in changed:
        key, key_bit = _written(what, "key", types["key"], old=row["key"], old_bit=key_bit, bit=KEY_STRUCTURED)
    for name in ("payload", "after"):
        if name in changed:
            after, after_bit = _written(
                what, name, types[name], old=row["after"], old_bit=after_bit, bit=AFTER_STRUCTURED
            )
    before_bit = shape.bitwiseAND(BEFORE_STRUCTURED)
    bits = key_bit.bitwiseOR(before_bit).bitwiseOR(after_bit).cast("byte")
    return [key.alias("key"), row["before"].alias("before"), after.alias("after"), bits.alias("shape")]


def _written(what: str, name: str, kind: Any, *, old: Column, old_bit: Column, bit: int) -> tuple[Column, Column]:
    """Returns a data field by the result's column: its bytes, and its bit of `shape`."""
    from pyspark.sql import functions as f

    column = f.col(name)
    if kind.typeName() in ("struct", "map"):
        text = f.to_json(column, {"ignoreNullFields": "false"})
        return text.cast("binary"), f.when(column.isNull(), f.lit(0)).otherwise(f.lit(bit))
    if kind.typeName() not in ("string", "binary", "void"):
        raise ConfigError(
            f"{what}: the column {name} must be text, binary, a struct or a map, not {kind.simpleString()}"
        )
    new = column.cast("binary")
    untouched = new.eqNullSafe(old)
    if kind.typeName() != "string":
        return new, f.when(untouched, old_bit).otherwise(f.lit(0))
    # Readers parse data with the bit for structured data, so only a JSON object may get it.
    an_object = column.startswith("{") & f.try_parse_json(column).isNotNull()
    structured = ((old_bit != 0) | old.isNull()) & f.coalesce(an_object, f.lit(False))
    return new, f.when(untouched, old_bit).when(structured, f.lit(bit)).otherwise(f.lit(0))


def _renumbered(rows: DataFrame) -> DataFrame:
    """Renumbers `ord` from 0 over all records of a (slice, n) in which an id came more than once."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same_record = Window.partitionBy("slice", "n")
    in_order = same_record.orderBy("ord", "_at")
    counted = rows.withColumn("_ords", f.size(f.collect_set("ord").over(same_record)))
    counted = counted.withColumn("_rows", f.count(f.lit(1)).over(same_record))
    number = f.row_number().over(in_order) - 1
    return counted.withColumn("ord", f.when(f.col("_rows") > f.col("_ords"), number).otherwise(f.col("ord")))
