"""`spark` as a source and a destination: any format of Spark's session, read in the order of a column that only grows,
page by page, and appended to. Works in the driver, where the session is.

This module is light: Spark is imported when there is something to read or write (docs/connectors/spark.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import Refused, SourceError, Unavailable
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_FORMAT = (
    Option("format", "a format of Spark's, such as jdbc, orc or delta", required=True),
    Option("path", "what is loaded or saved, for formats that have one; a folder relative to home, or a URI"),
    Option("options.*", "an option of the format, such as options.url", secret=True),
)


PAGE = 64 << 20
"""Bytes of rows, about, that a source takes through the driver at a time."""


class SparkSource(Replayable):
    """Token: {"after": the highest value of `column` that was read, as text}. A record's position: `<value>:<n>`, n
    counting the rows of that value.

    Only Spark knows the rows behind the last value, so its slices are open (docs/adr/0007-open-slices.md).
    """

    spec = Spec(
        "spark",
        "Reads any format of Spark's, in the order of a column that only grows.",
        (
            *_FORMAT,
            Option("column", "the column that only grows: rows behind the highest value read are new", required=True),
            Option("schema", "of the data, as Spark writes one (`id BIGINT, at TIMESTAMP`), for formats that need it"),
            Option("key", "field whose value is the record's key"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
    )
    in_driver = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._column = self.settings["column"]
        self._ended: Token = None

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return [Slice("", "", position.get(""), None, hint=limit.records, open=True)]

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        self._ended = slice.start
        try:
            frame = self._frame()
            at = self._ordered(frame)
            rows = frame.withColumn("_at", at).where(F.col("_at").isNotNull())
            if slice.start is not None:
                rows = rows.where(F.col("_at") > F.lit(slice.start["after"]).cast(rows.schema["_at"].dataType))
            last = rows.select("_at").orderBy("_at").limit(slice.hint or 2**31 - 1).agg(F.max("_at").cast("string"))
            found = last.collect()[0][0]
            if found is None:
                return
            # Rows of one value stay together: the next slice begins behind it.
            kind = rows.schema["_at"].dataType
            rows = rows.where(F.col("_at") <= F.lit(found).cast(kind))
            for until in _pages(rows):
                bound = F.lit(until).cast(kind)
                yield from self._batches(rows.where(F.col("_at") <= bound).orderBy("_at").toArrow())
                rows = rows.where(F.col("_at") > bound)
        except (PySparkException, Py4JJavaError) as error:
            _raise_if_lost(error)
            raise SourceError(f"spark: {self._named()} cannot be read: {_said(error, self.settings)}") from None
        self._ended = {"after": found}

    def reached(self, slice: Slice) -> Token:
        return self._ended

    def _frame(self) -> DataFrame:
        from conduit_tasks.spark.session import session

        reader = session().read.format(self.settings["format"]).options(**_given(self.settings))
        if "schema" in self.settings:
            reader = reader.schema(self.settings["schema"])
        path = _path(self.settings)
        return reader.load(path) if path else reader.load()

    def _ordered(self, frame: DataFrame) -> Column:
        """Returns the column in a type whose text keeps the whole value. Raises SourceError."""
        from pyspark.sql import functions as F

        if self._column not in frame.columns:
            raise SourceError(
                f"spark: {self._named()} has no column '{self._column}', it has {', '.join(frame.columns)}; "
                "correct 'column'"
            )
        kind = frame.schema[self._column].dataType.typeName()
        if kind == "timestamp":
            return F.unix_micros(F.col(self._column))
        if kind in ("double", "float", "array", "map", "struct", "binary", "boolean"):
            raise SourceError(
                f"spark: column '{self._column}' is a {kind}, which gives rows no sure order; take another"
            )
        return F.col(self._column)

    def _batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from conduit_tasks.connectors.arrow_rows import batch_of

        ats = [str(value) for value in table.column("_at").to_pylist()]
        numbers: list[bytes] = []
        before, n = None, 0
        for at in ats:
            before, n = at, n + 1 if at == before else 0
            numbers.append(f"{at}:{n}".encode())
        first = 0
        for rows in table.drop_columns(["_at"]).to_batches():
            batch = batch_of(rows, "", 0, self.settings.get("key"))
            positions = pa.array(numbers[first : first + rows.num_rows], pa.binary())
            yield batch.set_column(0, batch.schema.field(0), positions)
            first += rows.num_rows

    def _named(self) -> str:
        return " ".join(filter(None, (self.settings["format"], self.settings.get("path"))))


class SparkDestination(BatchDestination):
    """Appends rows; if a task dies, rows that it wrote without a confirmation are written again (SEMANTICS C10)."""

    spec = Spec(
        "spark",
        "Appends to any format of Spark's.",
        (
            *_FORMAT,
            Option(
                "rows",
                "payload: the payload's fields are the columns; opencdc: the whole record in fixed columns",
                default="payload",
                choices=("payload", "opencdc"),
            ),
            Option("partition-by", "columns to partition what is saved by, comma-separated"),
            Option("rows-per-write", "rows appended at a time", default="500000"),
        ),
    )
    in_driver = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.chunk = options.integer(self.settings, "rows-per-write", least=1)  # type: ignore[misc]  # its own

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Appends the rows. Raises Refused if they do not fit the existing data, Unavailable."""
        import pyarrow as pa
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import AnalysisException, PySparkException

        from conduit_tasks.connectors.arrow_rows import written_rows
        from conduit_tasks.spark.session import session

        table = written_rows(rows, self.settings["rows"])
        # A column without any value does not show its type.
        empty = [name for name in table.column_names if pa.types.is_null(table.schema.field(name).type)]
        # Invariant 4: a writer that lost the lease meanwhile writes nothing more.
        self.still_ours()
        try:
            frame = session().createDataFrame(table.drop_columns(empty))
            writer = frame.write.format(self.settings["format"]).mode("append").options(**_given(self.settings))
            if by := options.words(self.settings, "partition-by"):
                writer = writer.partitionBy(*by)
            path = _path(self.settings)
            if path:
                writer.save(path)
            else:
                writer.save()
        except AnalysisException as error:
            raise Refused(f"spark: these rows cannot be appended: {_said(error, self.settings)}") from None
        except (PySparkException, Py4JJavaError) as error:
            _raise_if_lost(error)
            raise Unavailable(
                f"spark: {self.settings['format']} cannot be written: {_said(error, self.settings)}"
            ) from None
        return None


def _pages(rows: DataFrame) -> list[str]:
    """Returns the last value of `_at` of each page, ascending, as text. A page is what passes through the driver at a
    time: about PAGE bytes, and all rows of one value."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # Without a frame of its own, a window's sum counts all rows of one value at each of them.
    until = F.sum("_size").over(Window.partitionBy(F.lit(0)).orderBy("_at"))
    pages = rows.select("_at", _size(rows).alias("_size")).select("_at", F.floor((until - 1) / PAGE).alias("_page"))
    found = pages.groupBy("_page").agg(F.max("_at").cast("string").alias("_until")).orderBy("_page").collect()
    return [row["_until"] for row in found]


def _size(rows: DataFrame) -> Column:
    """Returns about how many bytes a row takes in Arrow. A number or a null counts as 8."""
    from pyspark.sql import functions as F

    size = F.lit(0)
    for field in rows.schema.fields:
        column = F.col(f"`{field.name.replace('`', '``')}`")
        kind = field.dataType.typeName()
        if kind in ("array", "map", "struct", "variant"):
            size = size + F.coalesce(F.octet_length(F.to_json(F.struct(column))), F.lit(0))
        elif kind in ("string", "binary", "varchar", "char"):
            size = size + F.coalesce(F.octet_length(column), F.lit(0))
        size = size + 8
    return size


def _raise_if_lost(error: Exception) -> None:
    from conduit_tasks.spark.session import lost

    if told := lost(error):
        raise told from error


def _given(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix("options."): v for name, v in settings.items() if name.startswith("options.")}


def _path(settings: Mapping[str, str]) -> str:
    path = settings.get("path", "")
    return path if "://" in path or not path else installation().path(path)


def _said(error: Exception, settings: Mapping[str, str]) -> str:
    """Returns Spark's message without its plan or Java's stack, and without the values of the format's options."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = lines[1 if lines[0].startswith("An error occurred while calling") and len(lines) > 1 else 0][:500]
    for value in _given(settings).values():
        said = said.replace(value, "…") if len(value) > 5 else said
    return said


SOURCE = SparkSource
DESTINATION = SparkDestination
