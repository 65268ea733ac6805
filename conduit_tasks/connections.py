"""Airflow's connections, which give connectors hosts and credentials (`settings: {connection: NAME}`): whom each
process asks for one, and how drivers and executors are given theirs.

The pipeline holds the name alone. It is resolved in the process that makes the connector, when it makes it: a task asks
its supervisor, any other process the environment, the secrets backends and the database of Airflow. A Spark driver is
given the connections of its pipeline by its task, an executor by its driver (docs/connections.md).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from typing import Any

from conduit_tasks.errors import ConduitError, ConnectionMissing

SETTING = "connection"
"""The setting that names a connection."""
VARIABLE = "CONDUIT_CONNECTIONS"
"""Environment variable by which a task gives its driver the connections of the pipeline (JSON)."""
KEPT = 30.0
"""Seconds for which an answer of Airflow's is used again: a plan and the acks make connectors every few seconds."""


@dataclass(frozen=True)
class Connection:
    """One connection of Airflow's. No password, and nothing of `extra`, is in its text."""

    id: str
    type: str = ""
    host: str = ""
    login: str = ""
    password: str = field(default="", repr=False)
    port: int | None = None
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


class NotAsked(ConduitError):
    """Airflow cannot be asked here, so it is not known whether there is such a connection."""


_given: dict[str, Connection] | None = None
"""The connections of the pipeline, if this process was given them; it then asks nobody."""
_asked: dict[str, tuple[float, Connection]] = {}
_before: list[Callable[[], None]] = []


def lookup(name: str) -> Connection:
    """Returns a connection. Raises ConnectionMissing if there is none; ConduitError if Airflow does not answer."""
    given = current()
    if given is not None:
        if name not in given:
            raise ConnectionMissing(f"this process was not given the Airflow connection '{name}'; run the task again")
        return given[name]
    until, found = _asked.get(name, (0.0, None))
    if found is None or time.monotonic() > until:
        found = _ask(name)
        _asked[name] = time.monotonic() + KEPT, found
    return found


def current() -> dict[str, Connection] | None:
    """Returns the connections that this process was given; None if it asks Airflow. Takes those of the environment out
    of it: processes that are started later, such as a connector's own, do not inherit them."""
    if (text := os.environ.pop(VARIABLE, None)) is not None:
        give(loads(text))
    return _given


def give(connections: Mapping[str, Connection] | None) -> None:
    """Sets the connections of this process, in place of those before; None: it asks Airflow."""
    global _given  # noqa: PLW0603 - of the process
    _given = None if connections is None else dict(connections)


def dumps(connections: Iterable[Connection]) -> str:
    """Returns connections as text for another process."""
    return json.dumps({each.id: asdict(each) for each in connections})


def loads(text: str) -> dict[str, Connection]:
    """Returns the connections of `dumps`, by name."""
    return {name: Connection(**each) for name, each in json.loads(text).items()}


def before_asking(prepare: Callable[[], None]) -> None:
    """Has a function called before Airflow is asked for the first time; it finds the installation's Airflow."""
    _before.append(prepare)


def find_airflow() -> None:
    """Calls what `before_asking` was given."""
    while _before:
        _before.pop()()


def _ask(name: str) -> Connection:
    find_airflow()
    in_task = getattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None) is not None
    if in_task:
        return _converted(name, _from_supervisor(name))
    # Airflow's log would be among what a command prints for programs.
    with redirect_stdout(sys.stderr):
        return _converted(name, _from_backends(name))


def _from_supervisor(name: str) -> Any:
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        from airflow.sdk.exceptions import AirflowNotFoundException
    except ImportError:  # Airflow 3.1
        from airflow.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(name)
    except AirflowNotFoundException:
        raise _missing(name) from None
    except AirflowRuntimeError as error:
        raise ConduitError(f"Airflow does not give the connection '{name}': {error}; the task is tried again") from None


def _from_backends(name: str) -> Any:
    """Asks what `airflow connections get` asks. Raises NotAsked if neither the environment nor a secrets backend has it
    and Airflow's database cannot be asked."""
    try:
        from airflow.exceptions import AirflowNotFoundException
        from airflow.models.connection import Connection as Stored
    except Exception as error:  # noqa: BLE001 - whatever is wrong with that installation
        raise NotAsked(f"Airflow cannot be loaded here: {type(error).__name__}") from None
    try:
        return Stored.get_connection_from_secrets(name)
    except AirflowNotFoundException:
        if _database_answers():
            raise _missing(name) from None
        raise NotAsked(
            f"the Airflow connection '{name}' is in neither the environment nor a secrets backend, and Airflow's "
            "database cannot be asked here: set AIRFLOW_HOME, or AIRFLOW__DATABASE__SQL_ALCHEMY_CONN, as Airflow has it"
        ) from None


def _database_answers() -> bool:
    try:
        from airflow.models.connection import Connection as Stored
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            session.execute(select(Stored.id).limit(1)).all()
    except Exception:  # noqa: BLE001 - whatever is wrong with it: it is not made, not reached, or of another version
        return False
    return True


def _missing(name: str) -> ConnectionMissing:
    return ConnectionMissing(
        f"the Airflow connection '{name}' does not exist. Add it: `airflow connections add {name} …`, the page Admin, "
        f"Connections, a secrets backend, or AIRFLOW_CONN_{name.upper()} in the environment of Airflow's components"
    )


def _converted(name: str, found: Any) -> Connection:
    try:
        extra = found.extra_dejson
    except Exception:  # noqa: BLE001 - the message would show what is in it
        extra = {}
    return Connection(
        id=name,
        type=str(found.conn_type or ""),
        host=str(found.host or ""),
        login=str(found.login or ""),
        password=str(found.password or ""),
        port=int(found.port) if found.port else None,
        schema=str(found.schema or ""),
        extra=extra if isinstance(extra, dict) else {},
    )
