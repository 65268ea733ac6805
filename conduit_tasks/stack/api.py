"""Airflow's REST API, as far as it is needed: tokens, runs, tasks, pools."""

from __future__ import annotations

import os
from typing import Any

import httpx

from conduit_tasks.airflow.at_once import at_once
from conduit_tasks.airflow.rest import ApiError, Rest, part_of
from conduit_tasks.errors import ConfigError
from conduit_tasks.stack.environment import USER, load_secrets
from conduit_tasks.stack.layout import Layout, State

URL, NAME, PASSWORD, TOKEN = (f"CONDUIT_AIRFLOW_{name}" for name in ("URL", "USER", "PASSWORD", "TOKEN"))


class Api(Rest):
    """A client of Airflow's own API."""

    def __init__(self, url: str, *, user: str = USER, password: str = "", token: str = "") -> None:
        super().__init__(url, user=user, password=password, token=token, named=f"{URL}, {NAME} and {PASSWORD}")

    @classmethod
    def of(cls, layout: Layout) -> Api:
        """Makes the client of the Airflow that `CONDUIT_AIRFLOW_URL` names, with its token or user and password; else
        of the embedded stack's.

        Raises ConfigError if there is neither.
        """
        url, environ = os.environ.get(URL), os.environ
        if url:
            return cls(
                url, user=environ.get(NAME, USER), password=environ.get(PASSWORD, ""), token=environ.get(TOKEN, "")
            )
        state = State.load(layout)
        if not state.api_url:
            raise ConfigError(
                f"no stack runs in {layout.home}: `conduit stack up`, or set {URL} to an Airflow's address"
            )
        return cls(state.api_url, password=load_secrets(layout)["password"])

    def health(self) -> dict[str, Any]:
        """Returns each component's health by its last heartbeat; {} if the API does not answer. No retries."""
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=5.0)
            return answer.json() if answer.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def dag(self, dag_id: str) -> dict[str, Any] | None:
        """Returns the DAG, or None if Airflow has not seen it (yet)."""
        path = f"/dags/{dag_id}"
        found: dict[str, Any] | None = self.request("GET", path, absent=True)
        if found is not None:
            part_of(found, "is_paused", bool, path)
        return found

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
        """Starts a run under an id of ours, so that a repeated request starts no second one."""
        body = {"dag_run_id": run_id, "logical_date": None, "run_after": at_once().isoformat(), "conf": conf}
        try:
            self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)
        except ApiError as error:
            if error.status != httpx.codes.CONFLICT:
                raise

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        path = f"/dags/{dag_id}/dagRuns/{run_id}"
        found: dict[str, Any] = self.request("GET", path)
        part_of(found, "state", str, path)
        return found

    def active_runs(self, dag_id: str) -> list[str]:
        """Returns the ids of the runs that are queued or running."""
        path = f"/dags/{dag_id}/dagRuns"
        found = self.request("GET", path, params={"state": ["queued", "running"], "limit": 100})
        return [part_of(run, "dag_run_id", str, path) for run in part_of(found, "dag_runs", list, path)]

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Returns the run's task instances."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found = self.request("GET", path, params={"limit": 200})
        instances: list[dict[str, Any]] = part_of(found, "task_instances", list, path)
        for instance in instances:
            part_of(instance, "task_id", str, path)
            part_of(instance, "try_number", int, path)
        return instances

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> list[str]:
        """Returns the lines of a task's log."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        found = self.request("GET", path, params={"full_content": "true"}, headers={"Accept": "application/json"})
        lines = part_of(found, "content", list, path)
        return [str(line.get("event", "")) if isinstance(line, dict) else str(line) for line in lines]

    def set_pool(self, name: str, slots: int) -> None:
        """Makes a pool, or changes its number of slots."""
        body = {"name": name, "slots": slots, "description": "Spark drivers at once", "include_deferred": False}
        if self.request("GET", f"/pools/{name}", absent=True) is None:
            self.request("POST", "/pools", json=body)
        else:
            self.request("PATCH", f"/pools/{name}", json=body)
