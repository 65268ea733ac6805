"""The built-in registry of Avro schemas. It lives in the installation's Redis and is shared by its pipelines.

A schema has an id, which comes from its text and is the same in every subject, and a version in each subject that it
was registered for.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.settings import settings as installation

_TAG = "{conduit-schemas}:"
_IDS = (1 << 31) - 1
"""Largest id: ids are positive and have four bytes in Confluent's wire format, which others read with a sign."""


class SchemaRegistry(Protocol):
    """A registry of schemas. Its methods raise Unavailable if it cannot be reached."""

    def by_id(self, id: int) -> str:
        """Returns the schema's JSON. Raises RecordError if there is none: the record names it."""

    def by_version(self, subject: str, version: int) -> tuple[int, str]:
        """Returns id and JSON. Raises ConfigError if there is none: the settings name it."""

    def register(self, subject: str, schema: str) -> int:
        """Registers the schema and returns its id, which is the same for the same schema."""

    def close(self) -> None:
        """Closes the connection."""


class RedisRegistry:
    """The built-in registry."""

    def __init__(self) -> None:
        from conduit_tasks.redis_client.connection import connect

        self._redis = connect(installation())

    def by_id(self, id: int) -> str:
        schema = self._read(_TAG + "schemas", str(id))
        if schema is None:
            raise RecordError(f"the schema registry has no schema with the id {id}")
        return schema

    def by_version(self, subject: str, version: int) -> tuple[int, str]:
        id = self._read(_versions(subject), str(version))
        if id is None:
            raise ConfigError(
                f"the schema registry has no version {version} of the subject {subject}; "
                "`conduit schemas register` makes it"
            )
        return int(id), self.by_id(int(id))

    def register(self, subject: str, schema: str) -> int:
        return self.register_version(subject, schema)[0]

    def register_version(self, subject: str, schema: str) -> tuple[int, int]:
        """Registers the schema and returns its id and its version in the subject."""
        from conduit_tasks.schemas import scripts

        keys = {"ids": _TAG + "ids", "schemas": _TAG + "schemas"}
        keys |= {"versions": _versions(subject), "places": f"{_TAG}places:{subject}"}
        digest = hashlib.sha256(schema.encode())
        args: Any = {"fingerprint": digest.hexdigest(), "schema": schema}
        args["wanted"] = int.from_bytes(digest.digest()[:4]) % _IDS + 1
        while (said := scripts.SCHEMA_REGISTER(self._redis, keys, **args)) == ["again"]:
            pass  # the next portion of a subject's versions that were registered before there was an index of them
        id, version = said
        return int(id), int(version)

    def listed(self) -> list[tuple[str, int, int]]:
        """Returns (subject, version, id) of all registered schemas, sorted."""
        from conduit_tasks.redis_client.connection import reaching

        prefix = _versions("")
        with reaching(self._redis):
            subjects = [key.removeprefix(prefix) for key in self._redis.scan_iter(match=f"{prefix}*", count=1_000)]
            # In portions: a subject may have any number of versions.
            versions = {subject: [*self._redis.hscan_iter(_versions(subject), count=1_000)] for subject in subjects}
        return sorted({(name, int(v), int(id)) for name, of in versions.items() for v, id in of})

    def close(self) -> None:
        self._redis.close()

    def _read(self, key: str, field: str) -> str | None:
        from conduit_tasks.redis_client.connection import reaching

        with reaching(self._redis):
            value: Any = self._redis.hget(key, field)
        return value


def _versions(subject: str) -> str:
    return f"{_TAG}versions:{subject}"
