"""A server that speaks like Amazon's SQS and S3, on a port of the loopback; what it holds outlives a stop."""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from typing import Any

from conduit_tasks.stack.ports import free_port


@cache
def _quick() -> None:
    """Takes from moto's queues what makes them slow: for each message that it hands out, it asks three times for all
    attributes of its queue, which counts its messages in three ways, with two dates for each."""
    from moto.sqs import models

    def kept(backend: Any, queue: str, message: Any) -> bool:
        seconds = backend.get_queue(queue).message_retention_period
        return bool(seconds + message.sent_timestamp / 1000 > time.time())

    sqs: Any = models
    sqs.SQSBackend.is_message_valid_based_on_retention_period = kept
    sqs.unix_time, sqs.unix_time_millis = time.time, lambda: time.time() * 1000


class MotoServer:
    """moto's application, served by a thread of this process: a stopped one goes on where it was."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        _quick()
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self.port = free_port()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def settings(self) -> dict[str, str]:
        """What every connector needs to reach it."""
        return {
            "endpoint-url": f"http://127.0.0.1:{self.port}",
            "region": "eu-central-1",
            "access-key-id": "testing",
            "secret-access-key": "a-secret-of-tests",
        }

    def start(self) -> MotoServer:
        from werkzeug.serving import make_server

        self._server = make_server("127.0.0.1", self.port, self._app, threaded=True)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def client(self, service: str) -> Any:
        """To be closed."""
        from conduit_tasks.connectors import aws

        return aws.client(service, self.settings)
