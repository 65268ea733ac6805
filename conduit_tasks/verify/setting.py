"""The setting of a seed: the product, with the world in place of its clocks, disk, Redis and Spark."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from conduit_tasks.connectors import aws, registry
from conduit_tasks.connectors.file import connector as _file  # noqa: F401 - see below
from conduit_tasks.connectors.sql import connector as _sql  # noqa: F401
from conduit_tasks.connectors.sqs import connector as _sqs  # noqa: F401

# Modules imported only while the product is in the world would keep the world's parts for ever: so import them here.
from conduit_tasks.micro_batch import (  # noqa: F401
    acks,
    at_work,
    context,
    deliver,
    plan,
    process,
    read,
    wake,
    work_needed,
    work_through,
)
from conduit_tasks.operate import status as _status  # noqa: F401
from conduit_tasks.redis_client import connection
from conduit_tasks.resend import before_fan_out, prepare, redrive
from conduit_tasks.settings import settings
from conduit_tasks.spool import durable
from conduit_tasks.verify import deadly, receiver, tasks
from conduit_tasks.verify.faults import everywhere, faulty, load_scripts
from conduit_tasks.verify.machine import PATIENCE
from conduit_tasks.verify.operator import Operator
from conduit_tasks.verify.scenario_file import PIPELINE
from conduit_tasks.verify.watch import Watch

if TYPE_CHECKING:
    from conduit_tasks.verify.history import History


@contextmanager
def set_up(history: History) -> Iterator[None]:
    """Puts the product into the world and watches it; gives the history its pipeline and its operator."""
    from conduit_tasks.delivery import record_wise
    from conduit_tasks.micro_batch import dividing
    from conduit_tasks.pipeline.load import get_pipeline

    world, scenario = history.world, history.scenario
    receiver.memory = scenario.memory
    history.load = partial(get_pipeline, PIPELINE)
    history.pipeline = history.load()
    history.operator = Operator(history)

    def kill() -> None:
        world.faults.append(f"{'':8}  a deadly record is touched")
        if (actor := world.actor) is not None:
            actor.dead = True
            raise deadly.Killed("deadly")

    with ExitStack() as stack:
        stack.enter_context(patch.dict(registry.BUILTIN, {receiver.PLUGIN: receiver.__name__}))
        stack.enter_context(patch.object(deadly, "killer", kill))
        stack.enter_context(patch.object(deadly, "stubborn", True))
        # What is made on the side survives no process, and is no part of the world.
        stack.enter_context(patch.object(tempfile, "tempdir", str(history.home.parent)))
        # A seed's folder may have been there before, and nothing in it is durable.
        stack.enter_context(patch.object(durable, "_durable", set()))
        # Backoffs are jittered by the one generator of the process.
        stack.callback(random.setstate, random.getstate())
        random.seed(scenario.seed)
        for module in (redrive, before_fan_out):
            stack.enter_context(patch.object(module, "CHUNK", scenario.portion))
        limit = replace(prepare.LIMIT, records=scenario.portion)
        stack.enter_context(patch.object(prepare, "LIMIT", limit))
        stack.enter_context(patch.object(dividing, "LEAST", scenario.least))
        # Runs last some seconds.
        stack.enter_context(patch.object(plan, "ENDING", 0.5))
        stack.enter_context(patch.object(record_wise, "UNTOLD", scenario.untold))
        stack.enter_context(patch.object(record_wise, "FLUSH_RECORDS", max(1, scenario.untold - 1)))
        durability, connecting, pipelines = everywhere(connection.check_durability, connection.connect, get_pipeline)
        # Asked once is enough for a server of our own.
        _replace(stack, durability, lambda *_: None)
        shared = _connected(history, stack)
        _replace(stack, connecting, lambda _: shared)
        # Read once, and where the file is changed: parsing it takes longest.
        _replace(stack, pipelines, lambda _: history.pipeline)
        _silence(stack)
        stack.callback(history.operator.close)
        stack.enter_context(patch.object(aws, "client", history.queues.client))
        stack.enter_context(patch.object(tasks, "run_all", history.executors))
        stack.enter_context(faulty(world, history.disk))
        load_scripts(history.client)
        stack.enter_context(
            Watch(world, scenario, history.outside, history.found, history.client, history.operator.raw).looking()
        )
        if history.lasting is not None:
            stack.enter_context(history.lasting.looking())
        stack.enter_context(world.tidy())
        try:
            yield
        finally:
            world.end()
            history.tasks.clear()


def _silence(stack: ExitStack) -> None:
    for log in (logging.getLogger("asyncio"), logging.getLogger("conduit_tasks")):
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL + 1)


def _replace(stack: ExitStack, places: list[tuple[Any, str]], by: Any) -> None:
    for module, name in places:
        stack.enter_context(patch.object(module, name, by))


def _connected(history: History, stack: ExitStack) -> connection.Client:
    """Opens one connection for all, as one process moves at a time: opening one takes longer than most of its uses."""
    options = connection.options
    with patch.object(connection, "options", lambda **of: options(**of) | {"socket_timeout": PATIENCE}):
        shared = connection.connect(settings())
    stack.callback(shared.close)
    stack.enter_context(patch.object(shared, "close", lambda: None))
    for client in (shared, history.operator.raw, history.client):
        pool: Any = client.connection_pool  # type: ignore[union-attr]  # no cluster
        stack.callback(pool.release, held := pool.get_connection())
        stack.enter_context(patch.object(pool, "get_connection", lambda *_, held=held, **__: held))
        stack.enter_context(patch.object(pool, "release", lambda _: None))
    return shared
