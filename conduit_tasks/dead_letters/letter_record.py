"""A dead letter as a record of its own, for destinations that take dead letters (C14)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.record.record import Record

COLLECTION = "dead_letters"
"""Collection of letters. It names the topic or table if the plugin's settings do not: these are a template of
`opencdc.collection` then."""


def letter_id(letter: DeadLetter) -> str:
    """Returns the letter's own id, made from the record, the node that failed it and the epoch, never from the
    micro-batch."""
    return letter_record(letter, {}).id


def as_dict(letter: DeadLetter) -> dict[str, Any]:
    """Returns a letter as JSON types, with everything that C14 asks for."""
    record = letter.record
    return {
        "letter": letter_id(letter),
        "id": record.id,
        "micro_batch": letter.micro_batch,
        "seq": letter.seq,
        "ord": record.ordinal,
        "epoch": letter.epoch,
        "index": letter.index,
        "node": letter.node,
        "error": _text(letter.error),
        "error_class": letter.error_class,
        "attempts": letter.attempts,
        "at": letter.at,
        "pipeline": record.origin.pipeline,
        "connector": record.origin.connector,
        "partition": record.origin.partition,
        "position": base64.b64encode(record.position).decode(),
        "record": record.to_opencdc(),
    }


def letter_record(letter: DeadLetter, payload: dict[str, Any]) -> Record:
    """Returns the letter as a record. Its metadata are those of Conduit's own dead letters, and further details of the
    failure."""
    from conduit_tasks.record.record import Origin, Record

    failed = letter.record
    origin = failed.origin
    return Record(
        failed.position,
        metadata={
            "opencdc.collection": COLLECTION,
            "opencdc.createdAt": str(int(letter.at * 1e9)),
            "conduit.source.connector.id": origin.connector,
            "conduit.dlq.nack.error": _text(letter.error),
            "conduit.dlq.nack.node.id": letter.node,
            "conduit.dlq.nack.error.class": letter.error_class,
            "conduit.dlq.nack.attempts": str(letter.attempts),
            "cloudevents.source": f"{origin.pipeline}/{origin.connector}",
            "cloudevents.type": "conduit.dead-letter",
        },
        key=failed.key,
        after=payload,
        ordinal=failed.ordinal,
        origin=Origin(
            origin.pipeline,
            f"dead-letters.{letter.node.partition('/')[0]}",
            f"{origin.connector}/{origin.partition}@{letter.epoch}",
        ),
    )


def _text(text: str) -> str:
    """Returns an error text that databases accept: it may quote bytes that are no text, or characters that a database
    rejects."""
    from conduit_tasks.record import jsons

    return jsons.clean(text).replace("\0", "\N{SYMBOL FOR NULL}")
