"""`sql`: one Spark SQL statement over the micro-batch.

The statement reads the view `records` (its columns are listed in `conduit_tasks.processors.view`): `_id` string
("slice:n:ord"), `position` binary, `operation` string, `metadata` map<string,string>, `key` string, `payload` string
(JSON text, or raw data decoded), with the option `schema` (DDL) the struct `after`, and `_row`.

Its result must keep `_id`: a record whose id is missing is filtered (and so acked), one whose id comes several times
(`explode`, a join) becomes derived records. Changed columns among `operation`, `metadata`, `key`, `payload` and
`after` are taken over, so that for example

    SELECT * EXCEPT (metadata), map_concat(metadata, map('long', 'yes')) AS metadata FROM records WHERE …

filters and marks. A statement that loses track of which record a row is (an aggregate, sort, limit, DISTINCT, window,
set operation, or a join with anything but a static table) is refused before it runs, and so is anything but a query.
A record on which the statement fails (a cast) is found by halving and nacked alone, which costs a Spark job per
halving; if many fail, use `try_cast` and the like. With a `condition`, rows of other records pass by unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.base import FrameProcessor

VIEW = "records"


class Sql(FrameProcessor):
    """See the module."""

    spec = Spec(
        "sql",
        "Runs a Spark SQL statement over the records of the micro-batch.",
        (
            Option("query", "a SELECT from `records` that keeps `_id`", required=True),
            Option("schema", "DDL of the payload, for example 'carrier STRING, delay INT': adds the column `after`"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._query = self.settings["query"].strip().rstrip(";")
        self._schema = (self.settings.get("schema") or "").strip() or None

    def apply(self, spark: Any, frame: Any) -> Any:
        """Runs the statement; see `view.take_over` for the result. Raises ConfigError if the statement is refused."""
        from pyspark.errors import AnalysisException

        from conduit_tasks.processors import sql_plan, view

        try:
            records = view.of(frame, self._schema)
            # The view stays: a Connect server analyses the statement again whenever its result is asked for.
            records.createOrReplaceTempView(VIEW)
            # `examine` refuses commands: spark.sql would run one at once.
            facts = sql_plan.examine(spark, self._query)
            result = spark.sql(self._query)
            return view.take_over("sql", records, result, same=facts.same, repeats=facts.repeats)
        except AnalysisException as error:
            raise ConfigError(f"sql: Spark does not take the statement: {str(error).splitlines()[0]}") from error
