"""The schema service that connectors call back: schemas by subject and version, kept in our schema registry.

It serves on a port of the loopback interface for as long as one connector runs, and answers only calls that carry that
connector's token.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conduit_tasks.connectors.standalone.messages import method
from conduit_tasks.connectors.standalone.schemas import Schemas
from conduit_tasks.errors import ConduitError, ConfigError

SERVICE = "connutils.v1.SchemaService"
TOKEN = "conduit-connector-token"  # noqa: S105 - the name of a field
AVRO = 1


class Utilities:
    """A server for one connector. `target`: its address."""

    def __init__(self, token: str, schemas: Schemas) -> None:
        import grpc

        self._token, self._schemas = token, schemas
        self._server = grpc.server(
            ThreadPoolExecutor(2, "connector-utilities"),
            options=(("grpc.so_reuseport", 0),),
        )
        handlers = {}
        for name, answer in (("CreateSchema", self._create), ("GetSchema", self._get)):
            _, request, response = method(SERVICE, name)
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
            )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.target = f"127.0.0.1:{port}"

    def close(self) -> None:
        """Ends the server."""
        self._server.stop(None)

    def _create(self, request: Any, context: Any) -> Any:
        self._check(context)
        import grpc

        if request.type not in (0, AVRO):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "invalid schema type")
        try:
            version, id = self._schemas.create(request.subject, request.bytes.decode())
        except (ConfigError, UnicodeDecodeError):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "invalid schema")
        except ConduitError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return self._answer("CreateSchema", request.subject, version, id, request.bytes)

    def _get(self, request: Any, context: Any) -> Any:
        self._check(context)
        import grpc

        try:
            id, text = self._schemas.text(request.subject, request.version)
        except ConfigError:
            context.abort(grpc.StatusCode.NOT_FOUND, "schema version not found")
        except ConduitError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return self._answer("GetSchema", request.subject, request.version, id, text.encode())

    def _answer(self, name: str, subject: str, version: int, id: int, text: bytes) -> Any:
        _, _, response = method(SERVICE, name)
        return response(schema={"subject": subject, "version": version, "id": id, "type": AVRO, "bytes": text})

    def _check(self, context: Any) -> None:
        import grpc

        given = [value for key, value in context.invocation_metadata() if key.lower() == TOKEN]
        if given != [self._token]:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the connector's token is missing, or another one")
