"""Sources hand on and hold rows by bytes, not only by number: memory does not grow with the records' size."""

from __future__ import annotations

import pytest

from conduit_tasks.connectors.base import Limit
from tests.connectors.moto_server import MotoServer
from tests.connectors.test_sqs import RECEIPTS, Queue
from tests.limits import batch_bytes


@pytest.mark.xdist_group("moto")
@pytest.mark.proves("C13")
@pytest.mark.parametrize("where", ["body", "attribute"])
def test_messages_of_a_queue_are_handed_on_before_they_are_many_bytes(moto: MotoServer, where: str) -> None:
    # Given 40 messages of 10 KB
    queue = Queue(moto)
    text = "x" * 10_000
    attributes = {"large": {"DataType": "String", "StringValue": text if where == "attribute" else "x"}}
    queue.put(*(f"{n:02}{text if where == 'body' else ''}" for n in range(40)), MessageAttributes=attributes)
    source = queue.source()
    source.receipts = RECEIPTS
    # When they are received with a limit of 200 KB
    with batch_bytes(200_000):
        batches = [batch for slice in source.plan({}, Limit()) for batch in source.read(slice)]
    source.close()
    queue.client.close()
    # Then no batch has more than that and the few hundred bytes beside the text of each, and all of them are there
    assert max(batch.nbytes for batch in batches) < 220_000
    assert sorted(int(body[:2]) for batch in batches for body in batch.column("after").to_pylist()) == list(range(40))
