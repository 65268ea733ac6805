"""A notifier for `alerts` of a pipeline file: posts what an alert says to an address, as JSON, signed if it has a
secret."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk.bases.notifier import BaseNotifier

from conduit_tasks.errors import ConfigError, Unavailable


class Webhook(BaseNotifier):
    """POST of JSON to `url`: `body`, whose texts are templates, or else what templates see as `conduit`.

    `headers`: added to the request. `secret`: signs it as Standard Webhooks do (`webhook-id`, `webhook-timestamp`,
    `webhook-signature`), and the id is the same when the same is told again. `timeout`: seconds. Raises Unavailable
    unless the answer is a 2xx, ConfigError for a wrong argument; neither says more of the address than its host.
    """

    template_fields: Sequence[str] = ("body",)

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        secret: str = "",
        timeout: float = 10.0,
    ) -> None:
        super().__init__()
        self.url, self.headers, self.body, self.secret, self.timeout = url, dict(headers or {}), body, secret, timeout
        try:
            where = urlsplit(url)
            self.host = where.hostname or ""
        except ValueError:
            self.host = ""
        if not self.host or where.scheme not in ("http", "https"):
            raise ConfigError("alerts: the webhook's url is no address that begins with http:// or https://")

    def notify(self, context: Any) -> None:
        """Sends it. Raises Unavailable."""
        import httpx
        import orjson

        # It logs each address in full.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        about = context["conduit"]
        content = orjson.dumps(about if self.body is None else self.body, default=str)
        headers = {"Content-Type": "application/json", **self.headers, **self._signed(about, content)}
        try:
            answer = httpx.post(self.url, content=content, headers=headers, timeout=self.timeout)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            # Its text may name the address, whose path is often the secret.
            raise Unavailable(f"the webhook at {self.host} was not reached: {type(error).__name__}") from None
        if not answer.is_success:
            raise Unavailable(f"the webhook at {self.host} answered {answer.status_code}")

    def _signed(self, about: Mapping[str, Any], content: bytes) -> dict[str, str]:
        from conduit_tasks.connectors.signatures import ID, SIGNATURE, TIMESTAMP, encoded, mac, standard_key

        id, at = str(about.get("id") or uuid.uuid4()), str(int(time.time()))
        if not self.secret:
            return {ID: id}
        key = standard_key(self.secret, "alerts: the webhook's secret")
        code = encoded(mac(key, "sha256", f"{id}.{at}.".encode(), content), "base64").decode()
        return {ID: id, TIMESTAMP: at, SIGNATURE: f"v1,{code}"}
