"""Dead letters in lists of a bounded size (SEMANTICS C13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from conduit_tasks.record.batches import in_lists
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import data_bytes
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.store import DeadLetterStore, Rows


def portions(letters: Iterable[DeadLetter], most: int | None = None) -> Iterator[list[DeadLetter]]:
    """Returns the letters in order, in lists of at most `most` letters whose records have about CONDUIT_BATCH_BYTES
    bytes."""

    def size(letter: DeadLetter) -> int:
        return sum(len(data_bytes(data)) for data in (letter.record.key, letter.record.before, letter.record.after))

    return in_lists(letters, size, most, settings().batch_bytes)


def first_groups(store: DeadLetterStore, groups: Sequence[Rows], most: int) -> int:
    """Returns how many of these groups of rows, at least one, are sent together: `most` at most, whose records have
    about CONDUIT_BATCH_BYTES bytes."""
    some, limit, size = groups[:most], settings().batch_bytes, 0
    # As text; a record as it is stored is no longer.
    sizes: Iterator[int] = iter(store.sizes([row for group in some for row in group]))
    for n, group in enumerate(some):
        size += sum(next(sizes) for _ in group)
        if n and size > limit:
            return n
    return len(some)
