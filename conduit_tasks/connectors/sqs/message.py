"""Position, key (the message group, or an attribute), payload and metadata of the record that a message becomes.

| message | record |
|---|---|
| `MessageId` | position |
| body | payload after: raw, or structured if the format is `json` |
| message group, or the attribute `key-attribute` | key |
| `SentTimestamp` | metadata `opencdc.createdAt` |
| message attributes | metadata `sqs.attribute.<name>`; binary ones in base64 |
| sender, group, sequence number, deduplication id, receive count | metadata `sqs.…` |
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from conduit_tasks.record import jsons
from conduit_tasks.record.schema import AFTER_STRUCTURED, READ_SCHEMA

ATTRIBUTE = "sqs.attribute."

_SYSTEM = {
    "SenderId": "sqs.senderId",
    "MessageGroupId": "sqs.messageGroupId",
    "MessageDeduplicationId": "sqs.messageDeduplicationId",
    "SequenceNumber": "sqs.sequenceNumber",
    "ApproximateReceiveCount": "sqs.receiveCount",
}


def batch_of(messages: Sequence[dict[str, Any]], *, json: bool, key: str | None) -> pa.RecordBatch:
    """Returns the messages as READ_SCHEMA; with `json`, a message whose body is no JSON object is raw, with the reason
    in its metadata."""
    bodies = [jsons.clean(message["Body"]).encode() for message in messages]
    metadata = [_metadata(message) for message in messages]
    shapes = []
    for body, of in zip(bodies, metadata, strict=True):
        error = _no_object(body) if json else None
        shapes.append(AFTER_STRUCTURED if json and error is None else 0)
        if error is not None:
            of["conduit.error"] = error
    none = pa.nulls(len(messages), pa.binary())
    columns = [
        pa.array([jsons.clean(message["MessageId"]).encode() for message in messages], pa.binary()),
        pa.array([0] * len(messages), pa.int8()),
        pa.array([list(of.items()) for of in metadata], READ_SCHEMA.field("metadata").type),
        pa.array([_key(of, key) for of in metadata], pa.binary()),
        none,
        pa.array(bodies, pa.binary()),
        pa.array(shapes, pa.int8()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)


def size_of(message: dict[str, Any]) -> int:
    """Returns the characters of the body and the bytes of the attributes' values."""
    values = message.get("MessageAttributes", {}).values()
    return len(message["Body"]) + sum(len(v.get("BinaryValue") or v.get("StringValue") or "") for v in values)


def _metadata(message: dict[str, Any]) -> dict[str, str]:
    system = message.get("Attributes", {})
    out = {ours: system[theirs] for theirs, ours in _SYSTEM.items() if theirs in system}
    if (sent := system.get("SentTimestamp", "")).isascii() and sent.isdecimal():
        out["opencdc.createdAt"] = f"{sent}000000"
    for name, value in message.get("MessageAttributes", {}).items():
        if "BinaryValue" in value:
            out[f"{ATTRIBUTE}{name}"] = base64.b64encode(value["BinaryValue"]).decode()
        elif "StringValue" in value:
            out[f"{ATTRIBUTE}{name}"] = value["StringValue"]
    # JSON may hold halves of surrogate pairs, which are no text.
    return {jsons.clean(name): jsons.clean(value) for name, value in out.items()}


def _key(metadata: dict[str, str], attribute: str | None) -> bytes | None:
    name = "sqs.messageGroupId" if attribute is None else f"{ATTRIBUTE}{attribute}"
    return metadata[name].encode() if name in metadata else None


def _no_object(body: bytes) -> str | None:
    try:
        value = jsons.loads(body)
    except jsons.JSONDecodeError as error:
        return f"not JSON: {error}"
    return None if isinstance(value, dict) else "not a JSON object"
