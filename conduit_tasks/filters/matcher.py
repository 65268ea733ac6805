"""A compiled filter: the attributes it reads, and its test of an event."""

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
"""Attributes that one event has (`record.cloudevents.view`)."""


@dataclass(frozen=True)
class Matcher:
    """A compiled filter. `attributes`: the names it reads; None if they are not known: then the view must be whole."""

    attributes: frozenset[str] | None
    matches: Callable[[View], bool]
    always: bool = False
    """Whether it matches every event without a test: there are no filters."""

    def mask(self, batch: pa.RecordBatch, origins: Sequence[Origin]) -> npt.NDArray[np.bool_] | None:
        """Returns whether each row of a SPOOL_SCHEMA batch matches; None = all match. See `filters.batch.mask`."""
        from conduit_tasks.filters.batch import mask

        return mask(self, batch, origins)


EVERYTHING = Matcher(frozenset(), lambda view: True, always=True)
