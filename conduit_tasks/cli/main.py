"""The command `conduit`. Every command is a module of its own, imported only when it is called: `conduit --help`
imports no Spark and no Airflow, and a module that cannot be imported breaks only its own command."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from conduit_tasks.cli.output import fail
from conduit_tasks.errors import ConduitError

LARGEST = (1 << 63) - 1
"""Largest number that files, Redis and Spark hold."""
LONGEST = LARGEST // 10**6
"""The same of seconds, which they hold as microseconds."""


class Lazy(NamedTuple):
    """Place of a command: a module of `conduit_tasks.cli` with a function of the command's name (dashes as
    underscores) or, in a module of that name, `app: typer.Typer` with commands of its own."""

    module: str
    help: str


COMMANDS = {
    "init": Lazy("init", "Write a starter project."),
    "validate": Lazy("validate", "Check pipeline files; every finding with its place and what to do."),
    "explain": Lazy("explain", "Say what a pipeline guarantees on each edge, and what it does not tolerate."),
    "plan": Lazy("changes", "Show what a changed pipeline file does to data in flight."),
    "apply": Lazy("changes", "Apply a changed pipeline file to a pipeline with data in flight."),
    "schema": Lazy("schema", "Print the JSON Schema of the pipeline file, for editors."),
    "filters": Lazy("filters", "Try trigger filters on events."),
    "processors": Lazy("processors", "List and describe processors, and try one on records."),
    "pipelines": Lazy("pipelines", "Run the unit tests of a pipeline's processors and triggers."),
    "records": Lazy("records", "See what a pipeline makes of a record, step by step, and its last records."),
    "connectors": Lazy("connectors", "List and describe connectors, and try whether one keeps its contract."),
    "schemas": Lazy("schemas", "The Avro schemas of the registry built in: list, show, register."),
    "run": Lazy("run", "Run a pipeline now and wait for it."),
    "replay": Lazy("replay", "Send the records of an interval again, to chosen destinations."),
    "status": Lazy("status", "Show how far each destination is."),
    "start": Lazy("status", "Start a stopped or degraded pipeline again."),
    "stop": Lazy("status", "Stop a pipeline, gracefully unless told otherwise."),
    "positions": Lazy("positions", "Show how far the sources are read, or set it while a pipeline is stopped."),
    "dead-letters": Lazy("dead_letters", "What could not be delivered: look, take out, send again, give up."),
    "issues": Lazy("issues", "Failures of one cause, of all pipelines or of one: list, acknowledge, mute, resolve."),
    "ledger": Lazy("ledger", "Print what became of which records, where, when and in which attempt."),
    "metrics": Lazy("metrics", "Print or serve the metrics of all pipelines."),
    "gateway": Lazy("gateway", "Take events over HTTP; answer when they are stored."),
    "verify": Lazy("verify", "Kill a pipeline of its own at every moment, and check what must hold."),
    "doctor": Lazy("doctor", "Say what is missing or misconfigured in this installation."),
    "broker": Lazy("broker", "Look after the broker."),
    "stack": Lazy("stack", "Start and stop the embedded stack."),
}
"""All commands; one line adds a command."""


class LazyGroup(TyperGroup):
    """Group that lists commands from the table, and imports a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, lazy in COMMANDS.items() if importlib.util.find_spec(f"conduit_tasks.cli.{lazy.module}")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        return load_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])


def load_command(name: str) -> Any:
    """Returns the command object of a name in the table."""
    module = importlib.import_module(f"conduit_tasks.cli.{COMMANDS[name].module}")
    function = name.replace("-", "_")
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    # With a callback it is a group even with one command, so that the command is found under its name.
    group.callback()(lambda: None)
    if hasattr(module, "app") and function == COMMANDS[name].module:
        group.add_typer(module.app, name=name)
    else:
        group.command(name)(getattr(module, function))
    found = typer.main.get_group(group).commands[name]
    _check_values(found)
    return found


def _check_values(command: Any) -> None:
    """Has every option and argument of the command, and of its own commands, refuse what no system takes."""
    for each in getattr(command, "commands", {}).values():
        _check_values(each)
    for param in command.params:
        param.process_value = _checked(param, param.process_value)


def _checked(param: Any, process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(ctx: Any, value: Any) -> Any:
        found = process(ctx, value)
        for each in found if isinstance(found, list | tuple) else (found,):
            if wrong := _wrong(each):
                raise typer.BadParameter(wrong, ctx=ctx, param=param)
        return found

    return checked


def _wrong(value: Any) -> str:
    if isinstance(value, float) and not abs(value) <= LONGEST:
        return f"it takes a number up to {LONGEST:,}."
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return f"its number goes up to {LARGEST:,}."
    if isinstance(value, str) and ("\0" in value or (not value.isascii() and not _is_utf8(value))):
        return "it is no text in UTF-8, or has a NUL character."
    return ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


app = typer.Typer(
    name="conduit",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Events from many sources to many destinations, at least once, in order.",
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from conduit_tasks import __version__

        print(__version__)
        raise typer.Exit


def _find_airflow() -> None:
    """Has this process ask the Airflow of the embedded stack, if there is one and the environment names no other."""
    from conduit_tasks.settings import settings
    from conduit_tasks.stack.environment import component_environment
    from conduit_tasks.stack.layout import Layout, State

    layout = Layout(settings().home.resolve())
    state = State.load(layout)
    if "AIRFLOW_HOME" in os.environ or not state.api_url:
        return
    for name, value in component_environment(layout, state.api_url, state.redis_url, state.connect_url).items():
        os.environ.setdefault(name, value)


def main() -> None:
    """Runs the console script: a ConduitError is one line on stderr and exit code 1; `CONDUIT_DEBUG=1` shows its
    traceback."""
    from conduit_tasks.connections import before_asking
    from conduit_tasks.logs import configure

    configure(logging.WARNING)
    before_asking(_find_airflow)
    try:
        app()
    except ConduitError as error:
        if os.environ.get("CONDUIT_DEBUG"):
            raise
        fail(str(error))
        sys.exit(1)
