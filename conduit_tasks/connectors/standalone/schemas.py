"""Schemas of connectors: in our schema registry, and decoding of what a source encoded by them."""

from __future__ import annotations

import io
from typing import Any

from conduit_tasks.errors import ConfigError, RecordError


class Schemas:
    """Schemas of one connector, opened at the first use. May be used by several threads."""

    def __init__(self) -> None:
        self._registry: Any = None
        self._created: dict[tuple[str, str], tuple[int, int]] = {}
        self._texts: dict[tuple[str, int], tuple[int, str]] = {}
        self._decoders: dict[tuple[str, int], _Decoder] = {}

    def create(self, subject: str, text: str) -> tuple[int, int]:
        """Registers a schema and returns its version in the subject and its id: the same for the same schema. Raises
        ConfigError if it is none."""
        known = self._created.get((subject, text))
        if known is None:
            from conduit_tasks.schemas.avro import parsed_schema

            parsed_schema(text)
            id, version = self._opened().register_version(subject, text)
            known = self._created[subject, text] = (version, id)
            self._texts[subject, version] = (id, text)
        return known

    def text(self, subject: str, version: int) -> tuple[int, str]:
        """Returns a schema's id and JSON. Raises ConfigError if there is none."""
        known = self._texts.get((subject, version))
        if known is None:
            known = self._texts[subject, version] = self._opened().by_version(subject, version)
        return known

    def decode(self, raw: bytes, subject: str, version: str) -> dict[str, Any]:
        """Returns the structure that Avro data holds. Raises RecordError if it holds none."""
        try:
            number = int(version)
        except ValueError:
            raise RecordError(f"the version of its schema {subject} is {version!r}, no number") from None
        known = self._decoders.get((subject, number))
        if known is None:
            try:
                text = self.text(subject, number)[1]
            except ConfigError as error:
                raise RecordError(str(error)) from None
            known = self._decoders[subject, number] = _Decoder(text, f"{subject}, version {number}")
        return known.decode(raw)

    def close(self) -> None:
        """Closes the registry."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    def _opened(self) -> Any:
        if self._registry is None:
            from conduit_tasks.schemas.registry import RedisRegistry

            self._registry = RedisRegistry()
        return self._registry


class _Decoder:
    def __init__(self, text: str, name: str) -> None:
        from conduit_tasks.schemas.avro import parsed_schema
        from conduit_tasks.schemas.bound import Bound

        self._schema, self._name = parsed_schema(text), name
        self._bound = Bound(self._schema)

    def decode(self, raw: bytes) -> dict[str, Any]:
        import fastavro

        from conduit_tasks.schemas.avro import json_value
        from conduit_tasks.schemas.bound import Beyond

        try:
            self._bound.check(raw, 0)
            value = json_value(fastavro.schemaless_reader(io.BytesIO(raw), self._schema, None))
        except Beyond as error:
            raise RecordError(f"by its schema {self._name} {error}") from None
        except Exception as error:  # noqa: BLE001 - broken data makes the decoder fail in many ways
            raise RecordError(f"it is not of its schema {self._name}: {type(error).__name__}: {error}") from None
        if not isinstance(value, dict):
            raise RecordError(f"by its schema {self._name} it is {type(value).__name__}, no structure")
        return value
