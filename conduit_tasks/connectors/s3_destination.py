"""Writes records as objects, each write one: what was not confirmed is removed before the next."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors import aws, options
from conduit_tasks.connectors.base import BatchDestination, Option, Rows, Spec
from conduit_tasks.errors import ConfigError, Refused, Unavailable


class S3Destination(BatchDestination):
    """State: {"n": number of the last confirmed write}. Keys are `<prefix><pipeline>.<destination>/<n>-<chance>.<end>`:
    chance keeps a writer that lost its lease from overwriting what its successor wrote.

    `open` removes the objects behind `n`; before anything was confirmed it removes nothing, so that a crash in the
    first write leaves its records twice. A writer that stands still between its last look at the lease and its PUT may
    leave one there after that. What is there twice has the same ids (SEMANTICS C10).
    """

    spec = Spec(
        "s3",
        "Writes objects to a bucket: JSON Lines or Parquet.",
        (
            Option("bucket", "the bucket's name", required=True),
            Option("prefix", "of the keys, such as events/", default=""),
            Option(
                "format",
                "opencdc: a line of JSON per record; payload: the payload alone; parquet: rows",
                default="opencdc",
                choices=("opencdc", "payload", "parquet"),
            ),
            Option(
                "rows",
                "parquet: payload: the payload's fields are the columns; opencdc: the whole record in fixed columns",
                default="payload",
                choices=("payload", "opencdc"),
            ),
            Option("records-per-object", "records of an object at most", default="100000"),
            *aws.OPTIONS,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        aws.check(self.settings, "s3")
        self._bucket = self.settings["bucket"]
        self.chunk = options.integer(self.settings, "records-per-object", least=1)  # type: ignore[misc]  # its own
        self._client: Any = None
        self._n = 0

    @property
    def _folder(self) -> str:
        owner = f"{self.pipeline}.{self.connector}" if self.pipeline else "part"
        return f"{self.settings['prefix']}{re.sub(r'[^A-Za-z0-9_.-]', '_', owner)}/"

    def open(self, state: dict[str, Any] | None) -> None:
        self.close()
        self._client = aws.client("s3", self.settings)
        self._n = 0 if state is None else int(state["n"])
        if state is None:
            # Nothing was confirmed yet: what is there may be another life's, and is not ours to remove.
            self._n = self._newest()
            return
        # Invariant 4: one that stood still until its successor was done must not take that one's objects away.
        self.still_ours()
        for key in self._behind(self._n):
            with aws.Failing(Unavailable, f"s3: {self._bucket}/{key} cannot be removed"):
                self._client.delete_object(Bucket=self._bucket, Key=key)

    def _newest(self) -> int:
        numbers = [int(found[1]) for key in self._behind(0) if (found := re.match(r"(\d{10})-", self._name(key)))]
        return max(numbers, default=0)

    def _name(self, key: str) -> str:
        return key.removeprefix(self._folder)

    def _behind(self, n: int) -> list[str]:
        """Keys of what was written after the `n`-th write."""
        # "~" comes after all that follows the dash.
        after = f"{self._folder}{n:010d}-~" if n else self._folder
        with aws.Failing(Unavailable, f"s3: {self._bucket}/{self._folder} cannot be looked at"):
            pages = self._client.get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=self._bucket, Prefix=self._folder, StartAfter=after)
            return [each["Key"] for page in found for each in page.get("Contents", ())]

    def write(self, rows: Rows) -> dict[str, Any]:
        """One object, whole when it is seen. Raises Refused, Unavailable."""
        if self._client is None:
            raise ConfigError("s3: write before open")
        data, end = self._encoded(rows)
        n = self._n + 1
        key = f"{self._folder}{n:010d}-{secrets.token_hex(8)}.{end}"
        self.still_ours()
        with aws.Failing(Unavailable, f"s3: {self._bucket}/{key} cannot be written"):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)
        self._n = n
        return {"n": n}

    def _encoded(self, rows: Rows) -> tuple[bytes, str]:
        if self.settings["format"] != "parquet":
            from conduit_tasks.connectors.file_lines import lines

            return b"".join(lines(rows, self.settings["format"])), "jsonl"
        import pyarrow as pa
        import pyarrow.parquet as pq

        from conduit_tasks.connectors.arrow_rows import written_rows

        sink = pa.BufferOutputStream()
        try:
            pq.write_table(written_rows(rows, self.settings["rows"]), sink, compression="zstd")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Refused(f"these rows are no Parquet: {error}") from None
        return sink.getvalue().to_pybytes(), "parquet"

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
