"""Commands of a history on the one connection that its processes share.

The client's own way of a command (retries, measurements, a pool, locks) makes a third of a seed's function calls. Here
one process moves at a time, and the connection never fails: a command is packed, sent, and its answer parsed as the
client does, by the same C code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.client import EMPTY_RESPONSE, NEVER_DECODE, Pipeline
from redis.connection import hiredis
from redis.exceptions import ResponseError

Command = tuple[Sequence[Any], Mapping[str, Any]]
"""A command's words, and the client's options for its answer."""
_EXECUTE, _RUN = redis.Redis.execute_command, Pipeline.execute


def execute(client: Any, *args: Any, **options: Any) -> Any:
    """Does what `Redis.execute_command` does."""
    found = answers(client, [(args, options)])
    return _EXECUTE(client, *args, **options) if found is None else unless_error(found[0])


def run(batch: Any, raise_on_error: bool = True) -> list[Any]:
    """Does what `Pipeline.execute` does."""
    commands, found = batch.command_stack, None
    if commands and not (batch.transaction or batch.explicit_transaction or batch.scripts or batch.watching):
        found = answers(batch, commands)
    if found is None:
        return list(_RUN(batch, raise_on_error))
    batch.reset()
    if raise_on_error:
        batch.raise_first_error(commands, found)
    return found


def unless_error(answer: Any) -> Any:
    """Returns the answer. Raises it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def answers(client: Any, commands: Sequence[Command]) -> list[Any] | None:
    """Sends commands in one round trip, and returns their answers; an error is one, too. None: nothing was sent, as
    they need the client's own way."""
    pool, callbacks = client.connection_pool, client.response_callbacks
    connection = pool.get_connection()
    try:
        if connection._sock is None or any(EMPTY_RESPONSE in options for _, options in commands):
            return None
        connection._sock.sendall(b"".join([_packed(connection, args) for args, _ in commands]))
        found = _read(connection._parser, commands)
    except BaseException:
        # The next command would be given the answers that are still to come.
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    for at, (args, options) in enumerate(commands):
        callback = dict.get(callbacks, args[0])
        if callback is not None and not isinstance(found[at], ResponseError):
            more = {name: value for name, value in options.items() if name not in (NEVER_DECODE, "keys")}
            found[at] = callback(found[at], **more)
    return found


def _packed(connection: Any, words: Sequence[Any]) -> bytes:
    """Returns a command as it is sent."""
    if " " not in words[0]:
        try:
            return bytes(hiredis.pack_command(tuple(words)))
        except TypeError:
            # Of what only the client makes bytes, or an error.
            pass
    return b"".join(connection.pack_command(*words))


def _read(parser: Any, commands: Sequence[Command]) -> list[Any]:
    """Returns the answers as they come."""
    found, answer = [], parser._reader.gets
    for _, options in commands:
        undecoded = (False,) if NEVER_DECODE in options else ()
        while (each := answer(*undecoded)) is NOT_ENOUGH_DATA:
            parser.read_from_socket()
        found.append(each)
    return found
