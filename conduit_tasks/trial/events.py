"""Events sent to the gateway during the whole trial, by a producer that acts on the gateway's answers."""

from __future__ import annotations

import threading
import time
import uuid

import httpx

PAUSE = 0.1
"""Seconds between two events."""


class Producer(threading.Thread):
    """Producer of numbered CloudEvents to `url` until `finish`; it retries each, under its id, until the gateway has
    taken it."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(daemon=True)
        self.url, self._token, self._ended = url, token, threading.Event()
        self.taken: list[int] = []
        self.refused = 0
        """Answers other than 2xx, and connections that broke."""

    def run(self) -> None:
        series = uuid.uuid4().hex
        with httpx.Client(headers={"Authorization": f"Bearer {self._token}"}, timeout=10) as client:
            number = 0
            while not self._ended.is_set():
                number += 1
                event = {"specversion": "1.0", "id": f"{series}-{number}", "source": "/trial", "type": "trial.event"}
                event["datacontenttype"], event["data"] = "application/json", {"number": number}  # type: ignore[assignment]
                while not self._send(client, event):
                    self.refused += 1
                    time.sleep(1)
                self.taken.append(number)
                self._ended.wait(PAUSE)

    def _send(self, client: httpx.Client, event: dict[str, str]) -> bool:
        try:
            answer = client.post(self.url, json=event, headers={"Content-Type": "application/cloudevents+json"})
        except httpx.TransportError:
            return False
        return answer.is_success

    def finish(self, timeout: float = 120.0) -> list[int]:
        """Ends the producer, waits for the last event, and returns the numbers of all events that the gateway has
        taken."""
        self._ended.set()
        self.join(timeout)
        return self.taken
