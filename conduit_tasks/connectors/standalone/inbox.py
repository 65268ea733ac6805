"""Messages of one stream to and from a connector: those that come are taken by a thread and bounded by bytes, so that a
fast connector waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

BYTES = 32 << 20
"""Bytes that wait at most, or one message."""
LOOK = 60.0
"""Seconds after which a thread that waits for another one looks again, though nobody woke it."""


class Inbox:
    """Messages of one stream. `failed`: makes an error of what ended the stream."""

    def __init__(self, call: Iterator[Any], failed: Callable[[Any], Exception]) -> None:
        self._call, self._failed = call, failed
        self._messages: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self.ended = False
        """Whether the stream has ended, in good order or not."""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="connector-stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        import grpc

        try:
            for message, size in self._call:
                with self._changed:
                    while self._bytes and self._bytes + size > BYTES and not self._closed:
                        self._changed.wait(LOOK)
                    self._messages.append((message, size))
                    self._bytes += size
                    self._changed.notify_all()
        except grpc.RpcError as error:
            self.error = self._failed(error)
        except Exception as error:  # noqa: BLE001 - raised where the messages are taken
            self.error = error
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def take(self, seconds: float) -> tuple[Any, int] | None:
        """Returns the next message and its size; None if none comes within `seconds`, or the stream has ended. Raises
        the error that ended it, after the messages before."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._messages and not self.ended:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            if self._messages:
                message, size = self._messages.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return message, size
        if self.error is not None:
            raise self.error
        return None

    def drain(self, seconds: float) -> None:
        """Throws away what still comes, until the stream has ended; waits `seconds` at most."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while not self.ended and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
                self._messages.clear()
                self._bytes = 0


class Outbox:
    """Requests of one stream, in order; iterated by gRPC."""

    def __init__(self) -> None:
        self._requests: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, request: Any) -> None:
        """Sends a request."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify()

    def close(self) -> None:
        """Ends our side of the stream after what was put."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._changed:
            while not self._requests and not self._closed:
                self._changed.wait(LOOK)
            if self._requests:
                return self._requests.popleft()
        raise StopIteration
