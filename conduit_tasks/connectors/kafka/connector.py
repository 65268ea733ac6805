"""Names both sides of the connector `kafka`, with an example of each.

The extra `kafka` brings the client: `pip install 'conduit-tasks[kafka]'`. Options of
Conduit's connector keep their names.

```yaml
- id: orders
  type: source
  plugin: kafka
  settings: {servers: "localhost:9092", topics: "orders", readFromBeginning: "true"}
- id: copies
  type: destination
  plugin: kafka
  settings: {servers: "localhost:9092", topic: "orders.copy", format: payload}
```
"""

from __future__ import annotations

from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.connectors.kafka.source import KafkaSource

SOURCE = KafkaSource
DESTINATION = KafkaDestination
