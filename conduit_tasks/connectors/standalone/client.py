"""One connector at work: its process, its connection, the schema service that it calls back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conduit_tasks.connectors.hiding import Hide
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.connectors.standalone.inbox import Outbox
from conduit_tasks.connectors.standalone.messages import message, method
from conduit_tasks.connectors.standalone.process import ENDING, Process, token
from conduit_tasks.connectors.standalone.schemas import Schemas
from conduit_tasks.connectors.standalone.utilities import Utilities
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.settings import settings

log = logging.getLogger(__name__)

UNIMPLEMENTED = "method not implemented"
"""Text of the error that stands for a method that a connector does not have, whatever its code."""
PLUGIN = "plugin"
"""Name of the service in the health check."""


class Client:
    """A connector that was started. `id`: of the connector in its pipeline; `hide`: hides secrets in what it says.
    Raises ConfigError or Unavailable."""

    def __init__(self, file: Path, name: str, id: str, hide: Hide = str) -> None:
        import grpc

        self.name, self.schemas, self.hide = name, Schemas(), hide
        secret = token()
        self._limit = settings().connectors_message
        self._utilities = Utilities(secret, self.schemas)
        self._channel: Any = None
        self._outboxes: list[Outbox] = []
        try:
            self.process = Process(
                file,
                name,
                {
                    "CONDUIT_CONNECTOR_ID": id,
                    "CONDUIT_CONNECTOR_LOG_LEVEL": _level(),
                    "CONDUIT_CONNECTOR_MAX_RECEIVE_RECORD_SIZE": str(self._limit),
                    "CONDUIT_CONNECTOR_TOKEN": secret,
                    "CONDUIT_CONNECTOR_UTILITIES_GRPC_TARGET": self._utilities.target,
                },
                hide,
            )
        except BaseException:
            self._utilities.close()
            raise
        self._channel = grpc.insecure_channel(
            self.process.target,
            options=(
                ("grpc.max_receive_message_length", self._limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_metadata_size", 1 << 20),
                ("grpc.default_authority", "localhost"),
            ),
        )
        try:
            self._greet()
        except BaseException:
            self.kill()
            raise

    def _greet(self) -> None:
        """Waits until the connector answers, and has it say that it is well."""
        import grpc

        try:
            grpc.channel_ready_future(self._channel).result(timeout=settings().connectors_timeout)
        except grpc.FutureTimeoutError:
            gone = self.process.gone() or f"nothing answers at {self.process.target}"
            raise Unavailable(f"{self.name}: it cannot be reached: {gone}") from None
        try:
            health = self._call("grpc.health.v1.Health", "Check", {"service": PLUGIN})
        except NotImplementedError:
            pass
        else:
            if health.status != 1:
                raise Unavailable(f"{self.name}: it says that it is not well (health check: {health.status})")
        threading.Thread(target=self._stdio, name=f"stdio of {self.name}", daemon=True).start()

    def specify(self) -> Any:
        """Returns its specification."""
        return self._call("connector.v2.SpecifierPlugin", "Specify", {}).specification

    def call(self, side: str, name: str, **fields: Any) -> Any:
        """Calls a method of its source or destination. Raises Unavailable, and NotImplementedError if it has none."""
        return self._call(f"connector.v2.{side}Plugin", name, fields)

    def optional(self, side: str, name: str, **fields: Any) -> None:
        """Calls a method that it may not have."""
        with suppress(NotImplementedError):
            self.call(side, name, **fields)

    def stream(self, side: str, requests: Outbox) -> Any:
        """Begins `Run` and returns the call, which yields its answers with their sizes. `requests`: encoded or not;
        they are closed with this at the latest, else gRPC's thread would wait for a further one for ever."""
        path, _, response = method(f"connector.v2.{side}Plugin", "Run")
        call = self._channel.stream_stream(
            path,
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=lambda data: (response.FromString(data), len(data)),
        )
        self._outboxes.append(requests)
        return call(iter(requests))

    def _call(self, service: str, name: str, fields: Mapping[str, Any]) -> Any:
        import grpc

        path, request, response = method(service, name)
        call = self._channel.unary_unary(
            path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        limit = settings().connectors_timeout
        try:
            return call(request(**fields), timeout=limit)
        except grpc.RpcError as error:
            if _unimplemented(error):
                raise NotImplementedError(name) from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Unavailable(f"{self.name}: {name} did not answer within {limit:g} s") from None
            raise Unavailable(f"{self.name}: {name}: {self.said(error)}") from None

    def said(self, error: Any) -> str:
        """Returns what a gRPC error says, or why the process is gone."""
        import grpc

        text = clip(self.hide(error.details() or error.code().name))
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
            return (
                f"a message is larger than {self._limit} bytes, CONDUIT_CONNECTORS_MESSAGE: have it send smaller "
                f"batches (sdk.batch.size), or raise that ({text})"
            )
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN) and (gone := self.process.gone()):
            return gone
        return text

    def _stdio(self) -> None:
        """Logs what the connector prints; one whose output nobody reads stands still."""
        import grpc

        path, request, response = method("plugin.GRPCStdio", "StreamStdio")
        call = self._channel.unary_stream(
            path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        left = b""
        with suppress(grpc.RpcError, ValueError):
            for piece in call(request()):
                *lines, left = (left + piece.data).split(b"\n")
                for line in lines:
                    self.process.log.take(line)

    def finish(self) -> None:
        """Ends the connector in good order: asks it, then signals, then kills its group."""
        import grpc

        path, request, response = method("plugin.GRPCController", "Shutdown")
        call = self._channel.unary_unary(
            path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        try:
            call(request(), timeout=ENDING)
            asked = True
        except grpc.RpcError as error:
            # The connection breaks instead of an answer.
            asked = not _unimplemented(error)
        self._end(asked=asked, patience=ENDING)

    def kill(self) -> None:
        """Ends the connector at once."""
        self._end()

    def _end(self, *, asked: bool = False, patience: float = 0.0) -> None:
        for each in self._outboxes:
            each.close()
        self.process.end(asked=asked, patience=patience)
        if self._channel is not None:
            self._channel.close()
        self._utilities.close()
        self.schemas.close()


def configured(client: Client, side: str, config: Mapping[str, str]) -> None:
    """Gives a connector its settings. Raises ConfigError if it does not take them."""
    try:
        client.call(side, "Configure", config=dict(config))
    except Unavailable as error:
        if client.process.gone() or "did not answer" in str(error):
            raise
        raise ConfigError(f"{error}; correct its settings") from None


def record_class() -> Any:
    """Returns the class of a record's message."""
    return message("opencdc.v1.Record")


def _unimplemented(error: Any) -> bool:
    import grpc

    return error.code() is grpc.StatusCode.UNIMPLEMENTED or UNIMPLEMENTED in (error.details() or "")


def _level() -> str:
    level = logging.getLogger("conduit_tasks").getEffectiveLevel()
    return "debug" if level <= logging.DEBUG else "info" if level <= logging.INFO else "warn"
