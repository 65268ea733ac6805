"""Names the only side of the connector `iceberg`, its destination.

This module is light: the code that writes is imported when it is needed (docs/connectors/iceberg.md).
"""

from __future__ import annotations

from conduit_tasks.connectors.iceberg.destination import IcebergDestination

DESTINATION = IcebergDestination
