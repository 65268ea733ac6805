"""Processors of dead letters, run before the letters are stored (`dead-letter-queue.processors`).

They see each letter's record with the details of its failure in its metadata (FAILURE), which are removed afterwards.
Their result is stored, and is what a redrive sends; position, ordinal and origin stay, and so does the id (T8). If a
processor fails, or makes several records of one, no letter is lost: it is stored unchanged, and its error names the
failure. If a processor filters a letter, it is dropped, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Processor

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.handler import Handler
    from conduit_tasks.processors.result import Result

log = logging.getLogger(__name__)

FAILURE = ("conduit.dlq.nack.error", "conduit.dlq.nack.node.id", "conduit.dlq.nack.error.class")
"""Metadata that tells processors why a record failed: message, node and class."""


class Processed:
    """Handler that passes its letters through processors first."""

    def __init__(self, handler: Handler, processors: Sequence[Processor]) -> None:
        self._handler, self._processors = handler, processors

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """See Handler. Raises what the handler raises, and ConfigError if a processor cannot be built."""
        from conduit_tasks.processors.chain import Chain

        chain = Chain(self._processors)
        try:
            made = [_after(letter, result) for letter, result in zip(letters, chain.run(list(map(_seen, letters))))]
        finally:
            chain.close()
        self._handler.store([letter for letter in made if letter is not None])


def _seen(letter: DeadLetter) -> Record:
    record = letter.record.copy()
    record.metadata |= dict(zip(FAILURE, (letter.error, letter.node, letter.error_class)))
    return record


def _after(letter: DeadLetter, result: Result) -> DeadLetter | None:
    """Returns the letter as it is stored; None if it was filtered."""
    if result.filtered:
        log.warning("a dead-letter processor dropped record %s (%s)", letter.record.id, letter.error_class)
        return None
    if result.error is not None or len(result.records) > 1:
        why = result.error or f"it made {len(result.records)} records of one"
        who = f"the dead-letter processor {result.processor}" if result.processor else "a dead-letter processor"
        return replace(letter, error=f"{letter.error} ({who} failed: {why}; the record is as it was)")
    record, before = result.records[0], letter.record
    metadata = {name: value for name, value in record.metadata.items() if name not in FAILURE}
    kept = Record(
        before.position,
        record.operation,
        metadata,
        record.key,
        record.before,
        record.after,
        before.ordinal,
        before.origin,
    )
    return replace(letter, record=kept)
