"""Common base of processors that ask a language model: where the key comes from, the text that is sent, the answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from conduit_tasks.connectors.base import Option
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.http_calls import HttpProcessor
from conduit_tasks.record import jsons
from conduit_tasks.templates.values import nested

CONNECTION = Option("connection", "Airflow connection (in the environment: AIRFLOW_CONN_…) whose password is the key")


class ModelProcessor(HttpProcessor):
    """A processor that asks a provider's API in JSON."""

    key_option: str
    """The option that may hold the key."""
    key_variable: str
    """The environment variable that holds it otherwise."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        url = self.settings["url"].strip().rstrip("/")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(f"{self.spec.name}: option 'url' must begin with http:// or https:// and name a host")
        self._url = url

    async def ask(self, path: str, question: Any, *, again: Callable[[int], bool]) -> Any:
        """Returns the answer's JSON. Raises RecordError; `again` as in `request`."""
        headers = {"Content-Type": "application/json", **self._authorization()}
        answer = await self.request("POST", self._url + path, body=jsons.dumps(question), headers=headers, again=again)
        if answer.status >= 400:
            raise RecordError(f"{self.spec.name}: the answer is {answer.status}: {_reason(answer.body)}")
        try:
            return jsons.loads(answer.body)
        except jsons.JSONDecodeError as error:
            raise RecordError(f"{self.spec.name}: the answer is not JSON: {error}") from None

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key()}"}

    def _key(self) -> str:
        """Returns the key of the option, the connection or the environment. Raises ConfigError if there is none."""
        key = self.settings.get(self.key_option, "").strip()
        connection = self.settings.get("connection", "").strip()
        if not key and connection:
            key = _password(os.environ.get(f"AIRFLOW_CONN_{connection.upper()}", ""))
            if not key:
                raise ConfigError(
                    f"{self.spec.name}: option 'connection': AIRFLOW_CONN_{connection.upper()} is not in the "
                    "environment, or has no password"
                )
        key = key or os.environ.get(self.key_variable, "").strip()
        if not key:
            raise ConfigError(
                f"{self.spec.name}: no key; set the environment variable {self.key_variable}, or the option "
                f"'connection' or '{self.key_option}'"
            )
        return key

    def unexpected(self, answer: Any) -> RecordError:
        """Returns the error of an answer that does not have the documented form."""
        return RecordError(
            f"{self.spec.name}: the answer is not as documented: {jsons.dumps(answer)[:200].decode(errors='replace')}"
        )


def as_text(value: Any) -> str:
    """Returns a field's value as a model gets it: raw data and text as they are, the rest as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return jsons.dumps(value).decode() if isinstance(value, dict | list) else nested(value)


def _password(connection: str) -> str:
    """Returns the password of a connection in Airflow's form for the environment: JSON or a URI."""
    if connection.lstrip().startswith("{"):
        try:
            return str(jsons.loads(connection).get("password") or "")
        except jsons.JSONDecodeError:
            return ""
    return unquote(urlsplit(connection).password or "")


def _reason(body: bytes) -> str:
    try:
        said = jsons.loads(body)
        error = said.get("error") or said.get("message") or said
        return str(error.get("message", error) if isinstance(error, dict) else error)[:200]
    except (jsons.JSONDecodeError, AttributeError):
        return body[:200].decode(errors="replace")
