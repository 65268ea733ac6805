"""Errors as problem JSON (RFC 9457): what happened, and what to do next."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from conduit_tasks.errors import BrokerUnavailable, ConduitError, ConfigError, NotDurable
from conduit_tasks.ledger.history import UnknownRecord

_STATUS: tuple[tuple[type[ConduitError], int], ...] = (
    (UnknownRecord, 404),
    (BrokerUnavailable, 503),
    (NotDurable, 503),
    (ConfigError, 400),
)


LONGEST = 10_000
"""Characters of a detail, which may quote what came in."""
NAMED = 20
"""Most values that are named as wrong."""


class Problem(JSONResponse):
    """Answer of the type `application/problem+json` of any texts: halves of surrogate pairs become `?`."""

    media_type = "application/problem+json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False).encode(errors="replace")


def problem(status: int, detail: str, headers: Any = None, **more: Any) -> JSONResponse:
    """Returns a response of the type `application/problem+json`."""
    said = detail if len(detail) <= LONGEST else f"{detail[:LONGEST]}…"
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": said, **more}
    return Problem(body, status, headers=headers)


def install(app: FastAPI) -> None:
    """Installs handlers that answer every error of this app in this form."""

    @app.exception_handler(ConduitError)
    async def ours(_: Request, error: ConduitError) -> JSONResponse:
        return problem(next((code for kind, code in _STATUS if isinstance(error, kind)), 409), str(error))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input, which may be anything.
        errors = [{"where": ".".join(map(str, e["loc"]))[:256], "what": e["msg"]} for e in error.errors()[:NAMED]]
        said = "; ".join(f"{e['where']}: {e['what']}" for e in errors)
        return problem(422, f"{said}; correct what is named and ask again", errors=errors)
