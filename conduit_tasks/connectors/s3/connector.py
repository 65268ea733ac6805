"""`s3` as a source: objects in the order of their keys, a slice each, read in the format that their name says; one
replaced or removed since the plan is missing.

This module is light: boto3 and Arrow are imported when they are used (docs/connectors/s3.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import aws, missing, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.connectors.connection import AWS
from conduit_tasks.connectors.s3.destination import S3Destination
from conduit_tasks.errors import Missing, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.file.framing import LineFraming
    from conduit_tasks.connectors.s3.read import S3Object

RECORD = 250
"""Bytes assumed for a record, to turn a limit of records into bytes: the number of records in an object is not known
before it is read."""
_FORMATS = {"jsonl": (".jsonl", ".ndjson"), "csv": (".csv",), "parquet": (".parquet",), "text": (".txt", ".log")}


class S3Source(Replayable):
    """Token: {"key": of the last object read}. A slice is one object, identified by its ETag; a record's position:
    `<bucket>/<key>:<byte it begins at, or row>`.
    """

    spec = Spec(
        "s3",
        "Reads objects of a bucket in the order of their keys: lines, JSON Lines, CSV or Parquet.",
        (
            Option("bucket", "the bucket's name", required=True, conduit="aws.bucket"),
            Option("prefix", "of the keys to read", default=""),
            Option("suffix", "of the keys to read, such as .jsonl.gz", default=""),
            Option("start-after", "the key to begin behind; default: the first"),
            Option(
                "format",
                "what objects hold; auto: by the end of the key, before .gz",
                default="auto",
                choices=("auto", "text", "jsonl", "csv", "parquet"),
            ),
            Option("key", "field or column whose value is the record's key (jsonl, csv, parquet)"),
            Option("largest", "the largest object that is read, unpacked", default="1GiB"),
            Option("delimiter", "between the cells of a CSV row; \\t is a tab", default=","),
            Option("quote", "around CSV cells; empty: none", default='"'),
            Option("null-values", "CSV cells that are null, comma-separated; empty cells always are", default="NA"),
            missing.OPTION,
            *aws.OPTIONS,
            Option(
                "pollingPeriod", "of Conduit's connector; the pipeline's schedule says when the bucket is looked at"
            ),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=AWS,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        aws.check(self.settings, "s3")
        self._bucket, self._prefix = self.settings["bucket"], self.settings["prefix"]
        self._largest = options.size(self.settings, "largest")
        self._client: Any = None
        self._framing("csv")

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Returns the objects behind the last key, one slice each; the first is taken whatever its size."""
        before = position.get("")
        room = min(
            1 << 62 if limit.bytes is None else limit.bytes,
            1 << 62 if limit.records is None else limit.records * RECORD,
        )
        slices: list[Slice] = []
        for found in self._objects(before["key"] if before else self.settings.get("start-after", "")):
            key, size = found["Key"], int(found["Size"])
            if not key.endswith(self.settings["suffix"]) or key.endswith("/") or not size:
                continue
            if slices and room < size:
                break
            room -= size
            hint = {"key": key, "etag": found["ETag"], "format": self._format(key)}
            slices.append(Slice("", "", before, {"key": key}, bytes=size, hint=hint))
            before = {"key": key}
            if room <= 0:
                break
        return slices

    def _objects(self, after: str) -> Iterator[dict[str, Any]]:
        with aws.Failing(SourceError, f"s3: the bucket {self._bucket} cannot be listed"):
            pages = self._open().get_paginator("list_objects_v2")
            more = {"StartAfter": after} if after else {}
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix, **more):
                yield from page.get("Contents", ())

    def _format(self, key: str) -> str:
        if (format := self.settings["format"]) != "auto":
            return format
        name = key.removesuffix(".gz")
        for format, suffixes in _FORMATS.items():
            if name.endswith(suffixes):
                return format
        raise SourceError(
            f"s3: what {self._bucket}/{key} holds cannot be told by its name; set 'format', or 'suffix' to leave it out"
        )

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        return missing.tolerated(self, slice, self._read(slice), missing.beyond(self, slice))

    def _read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from conduit_tasks.connectors.file.framing import CsvFraming
        from conduit_tasks.connectors.file.read import records

        format, own = slice.hint["format"], self.settings.get("key")
        with self._object(slice.hint["key"], slice.hint["etag"]) as file:
            if format == "parquet":
                yield from file.rows(own)
                return
            framing = self._framing(format)
            begin = file.beginning() if framing.skip_blank else 0
            if isinstance(framing, CsvFraming):
                header = file.first_record(framing, settled=lambda: True)
                begin = header[1] if header else file.size
            nulls = tuple(word.encode() for word in options.words(self.settings, "null-values"))
            key = None if format == "text" else own
            yield from records(
                file, framing, format, begin=begin, end=file.size, key=key, null_values=nulls, parse=True
            )

    def _framing(self, format: str) -> LineFraming:
        from conduit_tasks.connectors.file.framing import CsvFraming, LineFraming

        if format != "csv":
            return LineFraming(skip_blank=format == "jsonl")
        delimiter = self.settings["delimiter"].replace("\\t", "\t")
        return CsvFraming(delimiter.encode(), self.settings["quote"].encode())

    def _object(self, key: str, etag: str) -> S3Object:
        """Returns the object as it was planned, unpacked, on this machine's disk."""
        from conduit_tasks.connectors.s3.read import PIECE, S3Object, unpacked

        where = f"s3: {self._bucket}/{key}"
        try:
            with aws.Failing(SourceError, where):
                answer = self._open().get_object(Bucket=self._bucket, Key=key, IfMatch=etag)
                with answer["Body"] as body:
                    pieces = unpacked(where, iter(lambda: body.read(PIECE), b""), self._largest)
                    return S3Object(f"{self._bucket}/{key}", pieces)
        except SourceError as error:
            cause = error.__cause__
            if isinstance(cause, Exception) and aws.code(cause) in ("PreconditionFailed", "412", "NoSuchKey"):
                raise Missing(
                    f"{where} was replaced or removed after it was planned. Put its former content back, or write new "
                    "data under a new key"
                ) from None
            raise

    def metadata(self, slice: Slice) -> dict[str, str]:
        return {"s3.bucket": self._bucket, "s3.key": slice.hint["key"]}

    def _open(self) -> Any:
        if self._client is None:
            self._client = aws.client("s3", self.settings)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


SOURCE = S3Source
DESTINATION = S3Destination
