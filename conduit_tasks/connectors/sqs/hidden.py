"""Keeps the messages that a worker received hidden from other consumers while it reads, and gives them back at once if
it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conduit_tasks.connectors import aws

log = logging.getLogger(__name__)

MESSAGES = 10
"""Messages in one request: SQS's own limit."""
REQUESTS = 8
"""Requests at a time."""


class Hidden:
    """Messages of one worker: each is hidden for `seconds`, and hidden for that long again when a third of them has
    passed."""

    def __init__(self, client: Any, url: str, seconds: float) -> None:
        self._client, self._url, self._seconds = client, url, seconds
        self._held: deque[tuple[float, list[str]]] = deque()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqs visibility", daemon=True)
        self._thread.start()

    def add(self, receipts: list[str]) -> None:
        """Adds messages that were received just now."""
        with self._lock:
            self._held.append((time.monotonic(), receipts))

    def give_back(self) -> None:
        """Makes the messages visible again at once if SQS can be reached; otherwise they are visible when their time is
        up."""
        try:
            while self._held:
                change(self._client, self._url, [(receipt, 0) for receipt in self._held.popleft()[1]])
        except aws.errors() as error:
            log.warning("messages of %s stay hidden for %s s: %s", self._url, self._seconds, error)

    def renew(self) -> None:
        """Hides all messages for their whole time from now on, if SQS can be reached."""
        with self._lock:
            held, self._held = [each for _, each in self._held], deque()
        began = time.monotonic()
        try:
            change_all(self._client, self._url, [(receipt, round(self._seconds)) for each in held for receipt in each])
        except aws.errors() as error:
            log.warning("messages of %s may become visible while they are worked on: %s", self._url, error)
        with self._lock:
            self._held.extend((began, each) for each in held)

    def close(self) -> None:
        self._done.set()
        self._thread.join(aws.CALL)

    def _run(self) -> None:
        while not self._done.wait(min(1.0, self._seconds / 10)):
            while (due := self._due()) and not self._done.is_set():
                began = time.monotonic()
                try:
                    change(self._client, self._url, [(receipt, round(self._seconds)) for receipt in due[1]])
                except aws.errors() as error:
                    log.warning("messages of %s may become visible while they are worked on: %s", self._url, error)
                    with self._lock:
                        # Still held, and still due: throttling passes.
                        self._held.appendleft(due)
                    break
                with self._lock:
                    self._held.append((began, due[1]))

    def _due(self) -> tuple[float, list[str]] | None:
        with self._lock:
            if self._held and time.monotonic() - self._held[0][0] > self._seconds / 3:
                return self._held.popleft()
            return None


Entry = tuple[str, int]
"""Receipt handle, seconds that its message is to be hidden for from now on."""


def change_all(client: Any, url: str, entries: Sequence[Entry]) -> None:
    """Changes the visibility of messages by several requests at a time. Raises what the client raises."""
    pieces = [entries[at : at + MESSAGES] for at in range(0, len(entries), MESSAGES)]
    with ThreadPoolExecutor(REQUESTS, "sqs visibility") as pool:
        list(pool.map(lambda piece: change(client, url, piece), pieces))


def change(client: Any, url: str, entries: Sequence[Entry]) -> None:
    """Changes the visibility of messages. One that was deleted, or has been handed out again, fails alone: there is
    nothing to be done for it."""
    for at in range(0, len(entries), MESSAGES):
        asked = [
            {"Id": str(n), "ReceiptHandle": receipt, "VisibilityTimeout": seconds}
            for n, (receipt, seconds) in enumerate(entries[at : at + MESSAGES])
        ]
        client.change_message_visibility_batch(QueueUrl=url, Entries=asked)
