"""Forgets the positions of parts that are gone for good, so that files that come and go do not grow the state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from conduit_tasks.connectors.sources import source_connector
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.halting import halting_call

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context

log = logging.getLogger(__name__)

EVERY = 3_600.0
"""Seconds between two looks at all parts of a source."""


def forget_gone(context: Context) -> int:
    """Looks for parts in the sources' positions that are gone, if the last look is long ago, and forgets those that
    have been gone for as long as their source says. Returns the number of parts forgotten. A source that cannot be
    looked at is looked at later."""
    from conduit_tasks.connectors.registry import source_class

    forgotten = 0
    for source in context.pipeline.sources:
        if not source_class(source.plugin).parts_go or not context.broker.positions.look_due(source.id, EVERY):
            continue
        connector = source_connector(context.pipeline, source.id)
        try:
            if (after := connector.forget_after) is None:
                continue
            known = context.broker.positions.planned(source.id)
            with halting_call(context.broker, "plan"):
                gone = connector.gone(known)
            forgotten += context.broker.positions.note_gone(source.id, gone, after)
        except (ConduitError, OSError) as error:
            log.info("%s: which of its parts are gone is looked at later: %s", source.id, error)
        finally:
            connector.close()
    if forgotten:
        log.info("the positions of %d parts are forgotten: they have been gone for long", forgotten)
    return forgotten
