"""Messages of the connector protocol, made from the descriptor set beside the `.proto` files.

They are in a descriptor pool of their own: another library of this process may have messages of the same names.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_SET = Path(__file__).parent / "proto" / "protocol.binpb"


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_SET.read_bytes()).file:
        pool.Add(file)
    return pool


@cache
def message(name: str) -> Any:
    """Returns the class of a message by its full name, such as `opencdc.v1.Record`."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


@cache
def method(service: str, name: str) -> tuple[str, Any, Any]:
    """Returns path, request class and response class of a method; `service` with its package."""
    found = _pool().FindServiceByName(service).FindMethodByName(name)
    return f"/{service}/{name}", message(found.input_type.full_name), message(found.output_type.full_name)
