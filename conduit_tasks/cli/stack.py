"""`conduit stack`: brings the embedded stack up and down, tells of it, shows its logs."""

from __future__ import annotations

from typing import Annotated

import typer

from conduit_tasks.cli.output import Format, note, print_json, print_table
from conduit_tasks.settings import settings
from conduit_tasks.stack.layout import Layout, State

app = typer.Typer(no_args_is_help=True, help="Start and stop the embedded stack.", rich_markup_mode=None)


def _layout() -> Layout:
    return Layout(settings().home.resolve())


@app.command()
def up(timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for each part.")] = 180.0) -> None:
    """Start the parts that do not run yet, and wait until all answer."""
    from conduit_tasks.stack import up as starting
    from conduit_tasks.stack.environment import USER

    layout = _layout()
    state = starting.up(layout, note, timeout=timeout)
    print(f"Airflow: {state.api_url}  user {USER}, password in {layout.passwords_file}")
    if state.gateway_url:
        print(f"Gateway: {state.gateway_url}/ingest/<pipeline>/<connector>")


@app.command()
def down(deadline: Annotated[float, typer.Option(min=0, help="Seconds in which pipelines may finish.")] = 60.0) -> None:
    """Let pipelines finish what is in flight, then stop everything. Exit code 1 if the deadline was missed."""
    from conduit_tasks.stack import down as stopping

    if not stopping.down(_layout(), note, deadline=deadline):
        raise typer.Exit(1)


@app.command()
def status(format: Annotated[Format, typer.Option(help="text or json")] = Format.text) -> None:
    """Show which parts run and where. Exit code 1 if one is stopped."""
    from conduit_tasks.stack import connect, gateway, processes
    from conduit_tasks.stack.down import GRACE

    layout = _layout()
    state = State.load(layout)
    rows = []
    for name in reversed(GRACE):
        if name in (gateway.NAME, connect.NAME) and name not in state.processes:
            continue
        found = processes.find(state.processes.get(name))
        addresses = {"redis": state.redis_url, "api-server": state.api_url}
        where = {**addresses, gateway.NAME: state.gateway_url, connect.NAME: state.connect_url}.get(name)
        rows.append((name, "running" if found else "stopped", found and found.pid, where, layout.log(name)))
    names = ("part", "state", "pid", "address", "log")
    if format is Format.json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, [(*row[:2], row[2] and str(row[2]), *row[3:]) for row in rows])
    if any(row[1] == "stopped" for row in rows):
        raise typer.Exit(1)


@app.command()
def logs(
    part: Annotated[str, typer.Argument(help="a part that `status` names, or migrate")],
    lines: Annotated[int, typer.Option("-n", "--lines", help="How many lines.")] = 50,
) -> None:
    """Print the end of a part's log."""
    from conduit_tasks.stack.processes import tail

    path = _layout().log(part)
    if not path.exists():
        note(f"there is no {path}")
        raise typer.Exit(1)
    print(tail(path, lines))
