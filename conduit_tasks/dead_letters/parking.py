"""Key parking: after a dead letter of a key, the later records of that key wait, in order (SEMANTICS X4).

A parked record is handled like one that needs no sending: a copy goes to a durable store, and then its position is
confirmed. A key is parked in the same step that confirms its dead letter, or the first copy parked behind it, whichever
comes first: so if a copy is confirmed, the broker knows that its key is parked. Records without a key are never parked.

Copies that are stored twice, or stored and then not confirmed, do no harm: a release takes only copies that are
confirmed and come after the key's position, each position once (`resend.waiting`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.broker.redrive import Place
from conduit_tasks.record import jsons
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Data, data_bytes
from conduit_tasks.record.schema import KEY_STRUCTURED

PARKED = "parked"
"""Error class of a parked copy."""


def key_hash(key: Data) -> str | None:
    """Returns the 16 hex digits by which the broker knows a key; None if a record has none. Equal structured keys have
    equal hashes, however their JSON was spelt. Two keys with the same hash wait for each other, but lose nothing."""
    return None if key is None else hashlib.blake2b(data_bytes(key), digest_size=8).hexdigest()


def stored_key_hash(key: bytes | None, shape: int) -> str | None:
    """Returns the same for a key as Arrow has it: `shape` says whether it is JSON text (record.schema)."""
    return key_hash(jsons.exact(key) if key is not None and shape & KEY_STRUCTURED else key)


def position_of(letter: DeadLetter) -> Place:
    """Returns the position of a letter's record, whichever epoch it failed in."""
    return (letter.micro_batch, letter.seq, letter.record.ordinal)


class Parking:
    """Parked keys of one destination during one delivery.

    `parked`: as the broker has them. `store`: makes copies durable, called before their positions are confirmed.
    `opens`: whether a dead letter parks its key (`delivery.park-keys`); keys that are already parked stay parked in any
    case. `save` and `to_park` may run beside the other methods, in another thread.
    """

    def __init__(
        self, parked: Mapping[str, Place], store: Callable[[Sequence[DeadLetter]], None], *, opens: bool = True
    ) -> None:
        self._through = dict(parked)
        self._store, self._opens = store, opens
        self._unsaved: list[DeadLetter] = []
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def takes(self, micro_batch: int, seq: int, ordinal: int, key: Data) -> bool:
        """Returns whether this record has to wait, because its key is parked behind an earlier record."""
        if not self._through:
            return False
        hashed = key_hash(key)
        return hashed in self._through and (micro_batch, seq, ordinal) > self._through[hashed]

    def hold(self, copy: DeadLetter) -> None:
        """Parks a record; `copy` is what a release sends."""
        hashed = key_hash(copy.record.key)
        assert hashed is not None, "what has no key is not parked"
        with self._lock:
            self._held.add(hashed)
            self._unsaved.append(
                replace(copy, error=f"waits behind a dead letter of key {hashed}", error_class=PARKED, attempts=0)
            )

    def nacked(self, letters: Iterable[DeadLetter]) -> None:
        """Parks the keys of letters that became dead letters, from here on."""
        if not self._opens:
            return
        for letter in letters:
            if (hashed := key_hash(letter.record.key)) is not None:
                self._through.setdefault(hashed, position_of(letter))

    def save(self) -> None:
        """Makes every copy held so far durable. Raises what the store raises; then the next call stores them."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, []
        if not unsaved:
            return
        try:
            self._store(unsaved)
        except BaseException:
            with self._lock:
                self._unsaved = unsaved + self._unsaved
            raise

    def to_park(self, dead: Iterable[DeadLetter]) -> dict[str, Place]:
        """Returns what a confirm of these letters, and of all copies held so far, tells the broker: hash of a key →
        position.

        Other keys are not parked: their nack is not accepted yet, and nothing waits behind it.
        """
        hashes = {key_hash(letter.record.key) for letter in dead}
        with self._lock:
            return {key: at for key, at in self._through.items() if key in hashes or key in self._held}

    def waiting(self, micro_batch: int, seqs: npt.NDArray[np.int64], batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Returns for each row of a batch (SPOOL_SCHEMA) whether it has to wait; each distinct key is hashed once."""
        out = np.zeros(len(seqs), dtype=bool)
        if not self._through or not len(seqs):
            return out
        shape, keys = batch.column("shape"), batch.column("key").dictionary_encode()
        hashes: dict[tuple[int | None, int], str | None] = {}
        ords = batch.column("ord").to_numpy()
        codes = keys.indices.to_pylist()
        for row, name in enumerate(zip(codes, shape.to_pylist())):
            if name[0] is None:
                continue
            if name not in hashes:
                hashes[name] = stored_key_hash(keys.dictionary[name[0]].as_py(), name[1])
            through = self._through.get(hashes[name] or "")
            out[row] = through is not None and (micro_batch, int(seqs[row]), int(ords[row])) > through
        return out
