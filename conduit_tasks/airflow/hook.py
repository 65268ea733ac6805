"""The provider's submit hook: starts the application where the Spark connection says, by `spark-submit`, at a Connect
server or forked, turns its output into lines of the task's log, and ends all its processes if the task is killed.

A connection of type `spark_connect` (the provider's own, as `SparkConnectHook` reads it) names a Spark Connect server:
the same application runs there, as by `spark-submit --remote`, without a JVM that would only start it.

Spark applications of this project write lines `conduit {json}` to stderr; here they become lines of the task's log, and
the last ones tell the operator why the application ended as it did.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow.forked import Application
from conduit_tasks.errors import SparkLost
from conduit_tasks.logs import parse
from conduit_tasks.spark.jvm import SHELL, told_in_folder
from conduit_tasks.spark.remote import Address
from conduit_tasks.spark.submit import DEFAULTS_FILE, elsewhere, launch, properties_file, read_defaults
from conduit_tasks.waits import still_running

PREFIX = "conduit {"
KILL_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for the processes that a killed submit left behind."""
END_GRACE = 12.0
"""Seconds that a driver has to interrupt its job (`ended.HALT`), and to end."""
PYTHON = ("spark.pyspark.driver.python", "spark.pyspark.python", "spark.submit.pyFiles", "spark.jars.packages")
"""Settings that give the driver another Python than the task's, or more to import: with them Spark must start it."""


class ConduitSubmitHook(SparkSubmitHook):
    """Submits with the configuration, environment and command line of `conduit_tasks.spark.submit`, or runs the
    application on the connection's Connect server.

    Raises SparkLost if that server cannot be reached and the connection's extra `submit` is false. ConfigError.
    `private`: additions to the environment of a driver on this machine, which no option, command line or log shows.
    `spare`: an application that waits for its arguments. It becomes the driver, at a Connect server or with the JVM of
    a submit, if we know that JVM's whole command line and it would start this very Python.
    `events`: the structured lines seen so far, oldest first, at most one per kind of event (the latest).
    """

    def __init__(
        self,
        home: Path,
        *,
        conn_id: str,
        conf: Mapping[str, str],
        name: str,
        application_args: list[str],
        quick_jit: bool,
        spare: Application | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        self.remote: Address | None = None
        self.spare, self._forks = spare, True
        self._private: dict[str, str] = {}
        super().__init__(conn_id=conn_id, conf=dict(conf), name=name, application_args=application_args)
        self.events: dict[str, dict[str, Any]] = {}
        if self.remote is not None:
            given = {**read_defaults(home / DEFAULTS_FILE), **conf}
            self._command: tuple[str, ...] | None = (sys.executable,)
            where = {} if self.remote.loopback else elsewhere()
            own = {**self.remote.environment(), **session_settings(given), **(private or {})}
            self._conf, self._env = {}, {**where, **own}
            return
        start = launch(home, self._connection["master"], self._connection["deploy_mode"], conf, quick_jit=quick_jit)
        self._conf, self._env_vars = start.conf, start.env
        own_binary = self._connection["spark_binary"] != "spark-submit"
        self._command = None if own_binary else start.command
        self._forks = self._command is not None and not any(name in self._conf for name in PYTHON)
        if self._connection["deploy_mode"] != "cluster":
            # Not among `env_vars`: those are options on the command line where the master is YARN or Kubernetes.
            self._private = dict(private or {})

    def _resolve_connection(self) -> dict[str, Any]:
        connection = self.get_connection(self._conn_id)
        address = connect_address(connection)
        if address is None:
            return super()._resolve_connection()
        extra = connection.extra_dejson
        if address.listens():
            self.remote = address
        elif str(extra.get("submit", True)).lower() == "false":
            raise SparkLost(
                f"the Spark Connect server at {address} cannot be reached, and the connection {self._conn_id!r} says "
                "submit: false; look whether it runs"
            )
        else:
            self.log.warning("the Spark Connect server at %s cannot be reached: this task submits by itself", address)
        return {
            "master": extra.get("master") or "local[*]",
            "queue": extra.get("queue"),
            "deploy_mode": extra.get("deploy-mode"),
            "spark_binary": "spark-submit",
            "namespace": extra.get("namespace"),
            "principal": None,
            "keytab": None,
            "rest_endpoint": None,
        }

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process that was started; 128 plus the number of a signal, as a JVM reports it of its
        driver. None if nothing was started, or it still runs."""
        code = self._submit_sp.returncode if self._submit_sp else None
        return code if code is None or code >= 0 else 128 - code

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submits as the provider's hook, but closes the pipe of the process, and passes properties in a file: on the
        command line every user of the machine could read them."""
        with properties_file(self._conf) as file:
            # The provider itself reads this one.
            self._conf = {name: value for name, value in self._conf.items() if name.endswith(".waitAppCompletion")}
            self._properties_file = file
            return self._submitted(application, **kwargs)

    def _submitted(self, application: str, **kwargs: Any) -> str | None:
        try:
            if self.spare is not None and self._forks and not self.spare.started:
                self._run_forked(self.spare, application)
                return None
            return super().submit(application, **kwargs)
        finally:
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()

    def _run_forked(self, spare: Application, application: str) -> None:
        command = self._build_spark_submit_command(application)
        self._submit_sp = spare
        words = [application, *(self._application_args or [])]
        jvm = [] if self.remote is not None else [*command[: -len(words)], SHELL, *words[1:]]
        folder: AbstractContextManager[dict[str, str]] = told_in_folder() if jvm else nullcontext({})
        with folder as where:
            spare.start(words, {**os.environ, **(self._env or {}), **where}, jvm)
            self._process_spark_submit_log(iter(spare.stdout))
        if spare.wait():
            said = f"Cannot execute: {self._mask_cmd(command)}. Error code is: {self.exit_code}."
            # Before 6.3 the provider keeps no last lines.
            raise AirflowException(said + getattr(self, "_submit_log_tail", ""))

    def _get_spark_binary_path(self) -> list[str]:
        return list(self._command) if self._command else super()._get_spark_binary_path()

    def _build_spark_submit_command(self, application: str) -> list[str]:
        if self.remote is not None:
            self.log.info("at %s: %s", self.remote, " ".join(self._application_args or []))
            return [*self._get_spark_binary_path(), application, *(self._application_args or [])]
        # The whole line is four pages of JVM options; the log gets only what a reader wants from it.
        command = self._get_spark_binary_path() + self._build_spark_common_args()
        self._env = {**(self._env or {}), **self._private}
        if self._properties_file:
            command.append("--load-spark-defaults")
        command.append(application)
        self.log.info(
            "submitting to %s%s: %s",
            self._connection["master"],
            " with a class-data archive" if any("SharedArchiveFile" in word for word in command) else "",
            " ".join(self._application_args or []),
        )
        return command + list(self._application_args or [])

    def _mask_cmd(self, connection_cmd: str | list[str]) -> str:
        words = connection_cmd if isinstance(connection_cmd, list) else [connection_cmd]
        return super()._mask_cmd(["spark-submit …", *(self._application_args or [])] if len(words) > 1 else words)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._without_events(itr))

    def _without_events(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            event = parse_event(line)
            if event is None and (record := parse(line.strip())) is not None:
                _pass_on(record)
                continue
            if event is None:
                yield line
                continue
            self.events[str(event.get("event", ""))] = event
            self.log.info("%s", describe_event(event))

    def on_kill(self) -> None:
        """Ends the process that was started and everything below it: the JVM, the Python driver, which could go on
        sending, and its workers.

        Workers are in a process group of their own, so the signal that Airflow sends to the task's group misses them.
        """
        below = self._descendants()
        if self._submit_sp is not None and (self.remote is not None or self._submit_sp is self.spare):
            # This process is the driver itself: after SIGTERM it interrupts its job.
            own = [psutil.Process(self._submit_sp.pid)] if self._submit_sp.poll() is None else []
            for process in own:
                _signal(process, force=False)
            still_running(own, END_GRACE)
        super().on_kill()
        for process in below:
            _signal(process, force=False)
        for process in still_running(below, KILL_GRACE):
            _signal(process, force=True)

    def _descendants(self) -> list[psutil.Process]:
        if self._submit_sp is None:
            return []
        try:
            return psutil.Process(self._submit_sp.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def connect_address(connection: Any) -> Address | None:
    """Returns the Connect server that an Airflow connection names: one of type `spark_connect`, as the provider writes
    it, or one whose host begins with `sc://`. None if it names none. Raises ConfigError."""
    host = str(connection.host or "")
    if connection.conn_type != "spark_connect" and not host.startswith("sc://"):
        return None
    where = host if "://" in host else f"sc://{host}"
    if connection.port:
        where, slash, rest = where.partition("/;")
        where = f"{where.rstrip('/')}:{connection.port}{slash}{rest}"
    address = Address.parse(where)
    params = {**address.params, **({"user_id": connection.login} if connection.login else {})}
    if (ssl := connection.extra_dejson.get("use_ssl")) is not None:
        params["use_ssl"] = str(ssl).lower()
    return replace(address, params=params, token=connection.password or address.token)


def session_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment by which Spark's client applies the `spark.sql.*` settings to its session; the other
    settings are the server's own."""
    own = {name: value for name, value in conf.items() if name.startswith("spark.sql.")}
    return {"PYSPARK_REMOTE_INIT_CONF_LEN": "1", "PYSPARK_REMOTE_INIT_CONF_0": json.dumps(own)} if own else {}


def _pass_on(record: dict[str, Any]) -> None:
    """Writes a log record of the application to the task's log: its level, logger and fields stay."""
    import structlog

    fields = {("at" if name == "timestamp" else name): value for name, value in record.items()}
    level, event, logger = (str(fields.pop(name)) for name in ("level", "event", "logger"))
    structlog.get_logger(logger).log(logging.getLevelNamesMapping().get(level.upper(), logging.INFO), event, **fields)


def _signal(process: psutil.Process, *, force: bool) -> None:
    try:
        process.kill() if force else process.terminate()
    except psutil.NoSuchProcess:
        return


def parse_event(line: str) -> dict[str, Any] | None:
    """Returns the JSON object of a line `conduit {…}`; None for every other line, also for a torn one."""
    line = line.strip()
    if not line.startswith(PREFIX):
        return None
    try:
        event = json.loads(line[len(PREFIX) - 1 :])
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def describe_event(event: Mapping[str, Any]) -> str:
    """Returns one readable line: the event, then its values."""
    rest = ", ".join(f"{key} {_short(value)}" for key, value in event.items() if key != "event" and value is not None)
    return f"{event.get('event', 'progress')}: {rest}" if rest else str(event.get("event", ""))


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:,}" if isinstance(value, int | float) else value
