"""`s3` as a destination: one object per write, named by its micro-batch and records, so that one that is written again
replaces itself; removes those that nobody confirmed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from conduit_tasks.connectors import aws, options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import AWS
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.record.record import data_bytes

_PLACE = re.compile(r"(?:([kpn]\d\d)\.(\d\d)-)?\d{9,}-(\d{9,})\.")
"""Behind the micro-batch in a key: division and shard, if it was divided, first and last place."""


class S3Destination(BatchDestination):
    """Keys are `<prefix><pipeline>/<destination>/<seal>-<micro-batch>-<first>-<last>.<end>`: the micro-batch's seal (16
    digits, microseconds) and number (10), and the places of the first and the last record in it (9 each). The same
    piece delivered again is the same object.

    After a crash, pieces may be cut at other places (smaller ones, after several crashes; another
    `records-per-object`). So before its first write into a micro-batch a writer removes the objects of this micro-batch
    whose last record is not confirmed (`Rows.pending`); an object was confirmed as a whole. Objects of other
    micro-batches, and so of another life of the pipeline, are never touched. It keeps no state.

    A shard (`delivery.parallelism`) has its name before the places: `…-<micro-batch>-k03.00-<first>-<last>.<end>`. It
    also removes all of its micro-batch that is not of its division, and leaves other shards' objects alone.

    Records sent again by themselves (a redrive) are named after their ids and payloads:
    `<16 zeros>-<digest>-<first>.<end>`.
    """

    effectively_once = True
    tidies = True

    spec = Spec(
        "s3",
        "Writes objects to a bucket: JSON Lines or Parquet.",
        (
            Option("bucket", "the bucket's name", required=True, conduit="aws.bucket"),
            Option("prefix", "of the keys, such as events/", default=""),
            Option(
                "format",
                "opencdc: a line of JSON per record; json: the same, by Conduit's name; payload: the payload alone; "
                "parquet: rows",
                default="opencdc",
                choices=("opencdc", "json", "payload", "parquet"),
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
        connection=AWS,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        aws.check(self.settings, "s3")
        if self.settings["format"] == "json":
            self.settings["format"] = "opencdc"
        self._bucket = self.settings["bucket"]
        self.chunk = options.integer(self.settings, "records-per-object", least=1)  # type: ignore[misc]  # its own
        self._client: Any = None
        self._tidied = ""
        """Micro-batch of which nothing is there that an earlier attempt wrote and nobody confirmed."""
        self._torn = ""
        """Key of a write that failed, and may have arrived all the same."""

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return True

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    @property
    def _folder(self) -> str:
        owner = f"{self.pipeline}/{self.connector}" if self.pipeline else "part"
        return f"{self.settings['prefix']}{owner}/"

    def open(self, state: dict[str, Any] | None) -> None:
        self.close()
        self._client = aws.client("s3", self.settings)
        if self._torn:
            # Invariant 4: a writer that stood still until its successor was done must not remove what that wrote.
            self.still_ours()
            self._remove([self._torn])
            self._torn = ""

    def tidy(self, rows: Rows) -> None:
        """Removes the objects of the rows' micro-batch that nobody confirmed. Raises Fenced, Unavailable."""
        self.still_ours()
        prefix = f"{self._folder}{rows.sealed}-"
        with self._reaching():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        self._remove([key for key in keys if self._pending(key.removeprefix(prefix), rows)])
        self._tidied = rows.sealed

    def _remove(self, keys: Sequence[str]) -> None:
        with self._reaching():
            for key in keys:
                self._client.delete_object(Bucket=self._bucket, Key=key)

    def _reaching(self) -> aws.Failing:
        return aws.Failing(Unavailable, f"s3: {self._bucket}/{self._folder} cannot be tidied")

    def _pending(self, name: str, rows: Rows) -> bool:
        """Returns whether an object of the rows' micro-batch, by the rest of its name, was never confirmed."""
        place = _PLACE.match(name)
        if place is None:
            return False
        division, shard, last = place.groups()
        if self.shard is not None and division != self.shard.division:
            return True
        return (self.shard is None or int(shard) == self.shard.number) and not rows.confirmed(int(last))

    def write(self, rows: Rows) -> None:
        """Writes one object, which is seen only when it is complete. Raises Refused, Unavailable, Fenced."""
        if self._client is None:
            raise ConfigError("s3: write before open")
        data, end = self._encoded(rows)
        if not rows.seal:
            self._put(f"{self._folder}{0:016d}-{_digest(rows)}-{rows.first:09d}.{end}", data)
            return
        shard = "" if self.shard is None else f"{self.shard}-"
        key = f"{self._folder}{rows.sealed}-{shard}{rows.first:09d}-{rows.last:09d}.{end}"
        if rows.epoch:
            # All of it is confirmed: nothing is to be removed, not even if this fails.
            self._put(key, data)
            return
        if rows.sealed != self._tidied:
            self.tidy(rows)
        self._torn = key
        self._put(key, data)
        self._torn = ""

    def _put(self, key: str, data: bytes) -> None:
        self.still_ours()
        with aws.Failing(Unavailable, f"s3: {self._bucket}/{key} cannot be written"):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def _encoded(self, rows: Rows) -> tuple[bytes, str]:
        if self.settings["format"] != "parquet":
            from conduit_tasks.connectors.file.lines import lines

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


def _digest(rows: Rows) -> str:
    """Returns a digest of the ids of these records, in order; and of the payloads of those that are sent again: a row
    that changed at its source may have the id that it had (`singer`), and must not take the place of what it was."""
    digest = hashlib.sha256()
    for record in rows.records():
        digest.update(f"{record.id}\n".encode())
        if rows.epoch:
            digest.update(hashlib.sha256(data_bytes(record.before)).digest())
            digest.update(hashlib.sha256(data_bytes(record.after)).digest())
    return digest.hexdigest()[:32]
