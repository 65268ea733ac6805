"""A compiled filter: which attributes it reads, and whether an event matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from conduit_tasks.record.record import Origin

View = Mapping[str, Any]
"""Attributes of one event that it has (`record.cloudevents.view`)."""


@dataclass(frozen=True)
class Matcher:
    """`attributes`: the names it reads; None where that cannot be known, then the view must be whole."""

    attributes: frozenset[str] | None
    matches: Callable[[View], bool]
    always: bool = False
    """Whether it matches everything without looking: there are no filters."""

    def mask(self, batch: pa.RecordBatch, origins: Sequence[Origin]) -> npt.NDArray[np.bool_] | None:
        """Per row of a SPOOL_SCHEMA batch; None = all match. See `filters.batch.mask`."""
        from conduit_tasks.filters.batch import mask

        return mask(self, batch, origins)


EVERYTHING = Matcher(frozenset(), lambda view: True, always=True)
