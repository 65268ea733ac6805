"""A hook for tasks of DAGs written by hand: calls of the API of pipelines, by an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook

from conduit_tasks.airflow.rest import Rest
from conduit_tasks.errors import ConfigError


class ConduitHook(BaseHook):
    """Calls the API that the plugin serves (docs/api.md), as the user of an Airflow connection.

    `conn_id`: a connection of type `http` to Airflow's api-server: `schema`, `host` and `port` of its address, `login`
    and `password` of an Airflow user with the rights, or a token as `password` without `login`. Requests that fail
    without a fault of their own are repeated.
    """

    def __init__(self, conn_id: str = "conduit_default") -> None:
        super().__init__()
        self.conn_id = conn_id

    def call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, json: Mapping[str, Any] | None = None
    ) -> Any:
        """Returns the JSON of an answer. `path`: below `/conduit/v1`, such as `/pipelines/orders/issues`.

        Raises ApiError if it is refused, or nobody answers, and ConfigError if the connection has no host.
        """
        with self._api() as api:
            return api.request(method, path, base="/conduit/v1", params=params, json=json)

    def pipelines(self, **filters: Any) -> list[dict[str, Any]]:
        """Returns the pipelines that the user may see, a row each; `filters`: those of the API, such as
        `attention=True`, and `offset`, `limit`."""
        found: list[dict[str, Any]] = self.call("GET", "/pipelines", params=filters)["items"]
        return found

    def status(self, pipeline: str) -> dict[str, Any]:
        """Returns what the broker knows of a pipeline: status, sources, destinations with lag and counts."""
        found: dict[str, Any] = self.call("GET", _path(pipeline))
        return found

    def start(self, pipeline: str) -> Any:
        """Starts a pipeline that is stopped or degraded."""
        return self.call("POST", f"{_path(pipeline)}/start", json={})

    def stop(self, pipeline: str, **how: Any) -> Any:
        """Stops a pipeline; `how`: `force`, `deadline`, `destination`."""
        return self.call("POST", f"{_path(pipeline)}/stop", json=how)

    def redrive(self, pipeline: str, *, dry_run: bool = False, **which: Any) -> dict[str, Any]:
        """Sends dead letters again by a run of `<pipeline>.resend`, or says which would go; `which`: `destination`,
        `classes`, `issues`, `since`, `until`, `keys`, `ids`."""
        body = {"dry_run": dry_run, **which}
        found: dict[str, Any] = self.call("POST", f"{_path(pipeline)}/dead-letters/redrive", json=body)
        return found

    def _api(self) -> Rest:
        of = self.get_connection(self.conn_id)
        if not of.host:
            raise ConfigError(f"connection {self.conn_id!r} has no host: name the address of Airflow's api-server")
        schema, _, host = of.host.rpartition("://")
        port = f":{of.port}" if of.port else ""
        url, secret = f"{schema or of.schema or 'http'}://{host.rstrip('/')}{port}", of.password or ""
        named = f"connection {self.conn_id!r}"
        if not of.login:
            return Rest(url, user="", token=secret, named=named)
        return Rest(url, user=of.login, password=secret, named=named)


def _path(pipeline: str) -> str:
    return f"/pipelines/{quote(pipeline, safe='')}"
