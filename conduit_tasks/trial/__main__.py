"""`make stack`: the compose stack in real containers, from empty volumes, with kills on the way, accounted for.

    python -m conduit_tasks.trial [--spool s3] [--months N] [--keep]
    python -m conduit_tasks.trial down

Exit code 0 only if every service became healthy, each killed service came back, the demo's account has no fault, both
Spark workers had executors, and all events of the gateway are in the file. `--keep` leaves the stack up; `down` removes
it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

import orjson

from conduit_tasks.cli.output import note, print_table
from conduit_tasks.errors import ConduitError
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.ports import free_port
from conduit_tasks.trial import images, kills
from conduit_tasks.trial.engine import Engine, TrialError, until
from conduit_tasks.trial.events import Producer

RECEIVER = "http://receiver:9000"
UP = 420
"""Timeout in seconds of `up --wait`; 56 were measured on two idle cores."""
LAST_EVENTS = 360.0
"""Seconds in which the last events that the gateway took must reach the file."""
PER_MONTH = 10_000
"""Records of a micro-batch per month of flights: that makes three micro-batches, with four kills in them."""
S3 = {
    "CONDUIT_SPOOL": "s3://conduit/spool",
    "CONDUIT_DEAD_LETTERS": "s3://conduit/dead-letters",
    "AWS_ENDPOINT_URL": "http://s3:5000",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "trial",
    "AWS_SECRET_ACCESS_KEY": "trial",
}


@dataclass
class Trial:
    """One trial below `.conduit/stack` of the checkout `root`, with `months` of flights."""

    root: Path
    s3: bool = False
    months: int = 12
    faults: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.root / ".conduit" / "stack"
        self.env = self.folder / "env"
        self.engine = Engine(self.root)
        self._with_s3(self.s3)

    @property
    def url(self) -> str:
        """Address of Airflow's UI and API."""
        return f"http://127.0.0.1:{self.values['CONDUIT_UI_PORT']}"

    def prepare(self) -> None:
        """Starts an engine, and makes images, this trial's secrets, and a project for it."""
        note("engine")
        self.engine.start()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.remove()
        found = images.ensure(self.engine, note)
        self.env.unlink(missing_ok=True)
        self.engine.run([str(self.root / "scripts/stack-init.sh"), str(self.env)], timeout=60)
        settings = {**found, "CONDUIT_PROJECT": str(self._project()), **(S3 if self.s3 else {})}
        settings |= {"CONDUIT_UI_PORT": str(free_port()), "CONDUIT_GATEWAY_PORT": str(free_port())}
        with self.env.open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())
        self.values = dict(line.split("=", 1) for line in self.env.read_text().splitlines())

    def up(self) -> float:
        """Starts everything and waits until it is healthy; returns the seconds that it took."""
        self._with_s3(self.s3)
        started = time.monotonic()
        note("starting the stack from empty volumes")
        try:
            self.engine.compose("up", "-d", "--wait", "--wait-timeout", str(UP), timeout=UP + 60)
        except TrialError as error:
            raise TrialError(f"{error}\n{self._unhealthy()}") from error
        if self.s3:
            bucket = (
                "import boto3; boto3.client('s3', endpoint_url='http://127.0.0.1:5000').create_bucket(Bucket='conduit')"
            )
            keys = [
                word for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") for word in ("-e", f"{name}={S3[name]}")
            ]
            self.engine.compose("exec", "-T", *keys, "s3", "python", "-c", bucket)
        return time.monotonic() - started

    def play(self) -> tuple[list[kills.Done], Producer]:
        """Runs the demo and the producer, with the kills; prints the demo's lines as they come."""
        gateway = f"http://127.0.0.1:{self.values['CONDUIT_GATEWAY_PORT']}/ingest/events/web"
        producer = Producer(gateway, self.values["GATEWAY_TOKEN"])
        producer.start()
        demo = self.engine.popen(self.engine.compose_line("run", "--rm", "-T", "--no-deps", "demo"))
        reader = threading.Thread(target=_pass_on, args=(demo.stdout,), daemon=True)
        reader.start()
        try:
            done = kills.watch(self.engine, lambda: demo.poll() is not None, note)
            demo.wait(7200)
            reader.join(10)
        finally:
            if demo.poll() is None:
                demo.kill()
                demo.wait()
            producer.finish()
        if demo.returncode:
            self.faults.append(f"the demo ended with {demo.returncode}")
        return done, producer

    def check_workers(self) -> dict[str, int]:
        """Returns the number of executors that each worker had, by their folders, which stay for a day."""
        found = {}
        for worker in kills.WORKERS:
            listed = self.engine.compose("exec", "-T", worker, "sh", "-c", "ls -d /var/lib/spark/work/app-*/* | wc -l")
            found[worker] = int(listed)
            if not found[worker]:
                self.faults.append(f"{worker} had no executor")
        return found

    def check_events(self, taken: list[int]) -> int:
        """Waits until every event that the gateway has taken is in the file; returns the number of its lines."""
        held: list[int] = []

        def all_there() -> bool:
            held[:] = self._held()
            return set(taken) <= set(held)

        try:
            with Api(self.url, password=self.values["AIRFLOW_ADMIN_PASSWORD"]) as api:
                api.trigger("events", f"trial__{uuid.uuid4()}", {})
            until(all_there, "the last events of the gateway", LAST_EVENTS, 3)
        except TrialError:
            missing = sorted(set(taken) - set(held))
            self.faults.append(f"{len(missing)} of {len(taken)} events are not in the file: {missing[:10]}")
        firsts = list(dict.fromkeys(held))
        if firsts != sorted(firsts):
            self.faults.append("the file has the events out of order")
        return len(held)

    def check_health(self) -> None:
        """Checks that every service runs and is healthy at the end, whatever was done to it."""
        if bad := self._unhealthy():
            self.faults.append(f"not healthy in the end:\n{bad}")

    def remove(self) -> None:
        """Removes containers, networks and volumes."""
        if self.env.exists():
            # With the S3 service, too: an earlier trial may have had one although this one has none.
            self._with_s3(True)
            self.engine.compose("down", "-v", "--remove-orphans", "--timeout", "10", timeout=300)

    def _with_s3(self, wanted: bool) -> None:
        files = ["docker-compose.yaml", *(["compose/trial/s3.yaml"] if wanted else [])]
        words = [word for file in files for word in ("-f", file)]
        self.engine.options = ["--env-file", str(self.env), "--profile", "demo", *words]

    def _held(self) -> list[int]:
        text = self.engine.compose("exec", "-T", "gateway", "sh", "-c", "cat /opt/conduit/out/events.jsonl || true")
        return [orjson.loads(line)["number"] for line in text.splitlines()]

    def _unhealthy(self) -> str:
        """Returns every container that is neither healthy nor done, with the end of its log; "" if there is none."""
        out = []
        for line in self.engine.compose("ps", "-a", "--format", "json").splitlines():
            about = orjson.loads(line)
            done = about["State"] == "exited" and about["ExitCode"] == 0
            if about.get("Health") != "healthy" and not done:
                log = self.engine.compose("logs", "--no-color", "--tail", "15", about["Service"])
                out.append(f"{about['Service']}: {about['State']} {about.get('Health', '')}\n{log}")
        return "\n".join(out)

    def _project(self) -> Path:
        """Makes the folder with this trial's pipelines and data, readable by the containers' user."""
        from conduit_tasks.demo.data import fetch

        project = self.folder / "project"
        shutil.rmtree(project, ignore_errors=True)
        pipelines, data = project / "include" / "pipelines", project / "include" / "data" / "flights"
        for folder in (pipelines, data):
            folder.mkdir(parents=True)
        shutil.copytree(self.root / "dags", project / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        flights = (self.root / "include/pipelines/flights.yaml").read_text()
        smaller = flights.replace("{max-records: 120000}", f"{{max-records: {PER_MONTH * self.months}}}")
        (pipelines / "flights.yaml").write_text(smaller)
        shutil.copyfile(self.root / "compose/trial/events.yaml", pipelines / "events.yaml")
        for month in fetch(self.root)[: self.months]:
            shutil.copyfile(month, data / month.name)
        for path in (self.folder, project, *project.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return project


def _pass_on(stream: IO[str]) -> None:
    for line in stream:
        note(line.rstrip("\n"))


def run(trial: Trial) -> None:
    """Runs the whole trial; failed checks are in `trial.faults`."""
    began = time.monotonic()
    trial.prepare()
    seconds = trial.up()
    note(f"all healthy after {seconds:.0f} s: {trial.url}, user admin")
    done, producer = trial.play()
    lines = trial.check_events(producer.taken)
    executors = trial.check_workers()
    trial.check_health()
    print()
    print_table(("killed", "while", "healthy again after"), [(k.service, k.node, f"{k.seconds:.0f} s") for k in done])
    print()
    rows = [("stack healthy, from empty volumes", f"{seconds:.0f} s"), ("spool", "S3 API" if trial.s3 else "volume")]
    rows += [(f"executors on {worker}", str(count)) for worker, count in executors.items()]
    taken = len(producer.taken)
    rows += [
        ("events the gateway took", f"{taken:,}"),
        ("  in the file", f"{taken:,}, {lines - taken:,} of them again"),
    ]
    rows += [
        ("  sent again, as it did not answer", str(producer.refused)),
        ("all together", f"{time.monotonic() - began:.0f} s"),
    ]
    print_table(("what", "how much"), rows)


def main(argv: list[str] | None = None) -> int:
    """Runs or removes a trial; returns the exit code."""
    parser = argparse.ArgumentParser(prog="conduit_tasks.trial", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", nargs="?", choices=("run", "down"), default="run")
    parser.add_argument("--spool", choices=("volume", "s3"), default="volume", help="where micro-batches lie")
    parser.add_argument("--months", type=int, choices=range(1, 13), default=12, help="how many months of flights")
    parser.add_argument("--keep", action="store_true", help="leave the stack up")
    options = parser.parse_args(argv)
    root = Path.cwd()
    if not (root / "docker-compose.yaml").exists():
        raise TrialError(f"{root} has no docker-compose.yaml; call this in a checkout of the project")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    trial = Trial(root, s3=options.spool == "s3", months=options.months)
    keep = options.keep
    try:
        if options.what == "run":
            run(trial)
        else:
            trial.engine.start()
            keep = False
    finally:
        _end(trial, keep, note)
    for fault in trial.faults:
        print(f"DOES NOT HOLD: {fault}")
    return 1 if trial.faults else 0


def _end(trial: Trial, keep: bool, say: Callable[[str], None]) -> None:
    if keep:
        say(f"left running; secrets in {trial.env}; `python -m conduit_tasks.trial down` removes it")
        return
    if trial.engine.compose_command:
        say("removing the stack")
        trial.remove()
    trial.engine.stop()


def run_program() -> NoReturn:
    """Runs `main` as a program, and ends with its exit code."""
    try:
        sys.exit(main())
    except ConduitError as error:
        sys.exit(f"stack: {error}")


if __name__ == "__main__":
    run_program()
