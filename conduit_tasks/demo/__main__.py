"""`make demo`: real flights through the real scheduler to three destinations, accounted for to the last one.

`python -m conduit_tasks.demo elsewhere RECEIVER_URL` does the same on a stack that runs already, the one that
`CONDUIT_AIRFLOW_URL` names; there runs may fail and services may be away for a while, as long as all ends well.

Exit code 0 only if everything read is acked and every destination's matched = delivered + filtered + dead-lettered,
checked against the destinations' own contents.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from conduit_tasks.cli.output import note
from conduit_tasks.cli.run import ENDED, await_dag, describe
from conduit_tasks.demo.account import Account, account, print_account
from conduit_tasks.errors import BrokerUnavailable, ConduitError
from conduit_tasks.settings import forget, settings
from conduit_tasks.stack import up as starting
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.layout import Layout

PIPELINE = "flights"
PORT = 9000
MOST_RUNS = 40
RECOVERY_PAUSE = 5.0
DEADLINE, PATIENCE = 1800.0, 7200.0
"""Timeouts in seconds of all runs together; the second one if `patient`, for a machine with other work."""


def main() -> int:
    """Runs the demo on the embedded stack; returns the exit code."""
    from conduit_tasks.demo.data import fetch

    home = settings().home.resolve()
    layout = Layout(home)
    months = fetch(home)
    note(f"data: {len(months)} files of flights below {home / 'include/data'}")
    receiver_url = start_receiver(home)
    os.environ.setdefault("DELAYS_URL", f"{receiver_url}/delays")
    starting.up(layout, note)
    forget()
    code = play(layout, receiver_url)
    note("`make down` stops the stack")
    return code


def play(layout: Layout, receiver_url: str, *, patient: bool = False) -> int:
    """Runs the pipeline until there is nothing left, and prints the account. `patient`: retries failed runs. Returns
    the exit code."""
    started = time.monotonic()
    with Api.of(layout) as api:
        await_dag(api, PIPELINE)
        before = account(PIPELINE, receiver_url)
        jvms, runs = run_until_quiet(api, receiver_url, patient)
        note(f"Airflow: {api.url}/dags/{PIPELINE}")
    result = account(PIPELINE, receiver_url)
    print()
    print_account(result)
    print(f"\n{told(before.read, result.read)}: {_count(runs, 'run')} of this command, ", end="")
    print(f"{_count(jvms, 'Spark application')}, {time.monotonic() - started:.0f} s")
    for fault in result.faults:
        print(f"NOT ACCOUNTED FOR: {fault}")
    return 1 if result.faults else 0


def told(before: int, after: int) -> str:
    """Returns the number of records read, in words. The schedule runs as soon as the stack does, so it may have read
    records before this command looked first."""
    if after == before:
        return f"all {after:,} events were read when this command looked first"
    return f"{after:,} events read, {after - before:,} of them since this command looked first"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def start_receiver(home: Path) -> str:
    """Starts the receiver of late flights, unless it runs already. Returns its URL. Raises ConduitError if it does not
    start."""
    import httpx

    url = f"http://127.0.0.1:{PORT}"
    folder = home / ".conduit"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        httpx.get(f"{url}/summary", timeout=2).raise_for_status()
        return url
    except httpx.HTTPError:
        pass
    with (folder / "receiver.log").open("ab") as log:
        command = [sys.executable, "-m", "conduit_tasks.demo.receiver", "--port", str(PORT)]
        command += ["--db", str(folder / "receiver.db"), "--seed", "2013", "--refuse", "carrier=YV"]
        command += ["--order", "tailnum,moment"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
    (folder / "receiver.pid").write_text(str(process.pid))
    deadline = time.monotonic() + 20
    while True:
        try:
            httpx.get(f"{url}/summary", timeout=2).raise_for_status()
            return url
        except httpx.HTTPError as error:
            if time.monotonic() > deadline or process.poll() is not None:
                raise ConduitError(f"the receiver does not start on port {PORT}: {error}; see {log.name}") from error
            time.sleep(0.1)


def run_until_quiet(api: Api, receiver_url: str, patient: bool) -> tuple[int, int]:
    """Triggers runs until one finds nothing to do. Returns (Spark applications started, runs). Raises ConduitError
    after MOST_RUNS."""
    deadline = time.monotonic() + (PATIENCE if patient else DEADLINE)
    jvms = 0
    for number in range(1, MOST_RUNS + 1):
        run_id = f"demo__{uuid.uuid4()}"
        api.trigger(PIPELINE, run_id, {})
        tasks = watch(api, run_id, receiver_url, deadline, patient)
        states = {t["task_id"]: t["state"] for t in tasks}
        jvms += sum(
            1 for t in tasks if t["operator"] == "ConduitSubmitOperator" and t["state"] in ("success", "failed")
        )
        if states.get("fan_in") == "skipped":
            if not patient or not account(PIPELINE, receiver_url).faults:
                return jvms, number
            # A failed node waits for its delay, and another run may be at work.
            time.sleep(RECOVERY_PAUSE)
    raise ConduitError(f"{PIPELINE} is not done after {MOST_RUNS} runs; see `conduit status {PIPELINE}`")


def watch(api: Api, run_id: str, receiver_url: str, deadline: float, patient: bool) -> list[dict[str, Any]]:
    """Prints the progress until the run ends; returns its tasks. Raises ConduitError if it failed or lasts too long;
    `patient`: a failed run is no error."""
    seen: dict[str, str] = {}
    said = ""
    while True:
        state = str(api.run(PIPELINE, run_id)["state"])
        tasks = api.tasks(PIPELINE, run_id)
        for task in sorted(tasks, key=lambda t: t.get("start_date") or "~"):
            now = task["state"] or ""
            if now in ("success", "failed", "up_for_retry", "running") and seen.get(task["task_id"]) != now:
                seen[task["task_id"]] = now
                note(describe(task))
        moved = moved_on(receiver_url, patient)
        if moved != said:
            note(f"    {moved}")
            said = moved
        if state in ENDED:
            if state == "failed" and not patient:
                raise ConduitError(f"run {run_id} failed; see {api.url}/dags/{PIPELINE}/runs/{run_id}")
            return tasks
        if time.monotonic() > deadline:
            raise ConduitError(f"not done in time; see `conduit status {PIPELINE}`")
        time.sleep(1)


def moved_on(receiver_url: str, patient: bool) -> str:
    """Returns the progress in one line; if `patient` and Redis does not answer, a line that says so."""
    try:
        return line(account(PIPELINE, receiver_url, contents=False))
    except BrokerUnavailable as error:
        if not patient:
            raise
        return f"Redis does not answer: {type(error).__name__}"


def line(found: Account) -> str:
    """Returns the progress in one line."""
    return f"read {found.read:,}  " + "  ".join(f"{d.id} {d.delivered:,}" for d in found.destinations)


def stop_receiver(home: Path) -> None:
    """Ends the receiver that `start_receiver` left running, if any."""
    pid_file = home / ".conduit" / "receiver.pid"
    try:
        pid = int(pid_file.read_text())
        # The number may belong to another process by now.
        if b"conduit_tasks.demo.receiver" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
            note("stopped the demo's receiver")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass
    pid_file.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["stop"]:
            stop_receiver(settings().home.resolve())
        elif sys.argv[1:2] == ["elsewhere"] and len(sys.argv) == 3:
            sys.exit(play(Layout(settings().home.resolve()), sys.argv[2], patient=True))
        else:
            sys.exit(main())
    except ConduitError as error:
        sys.exit(f"demo: {error}")
