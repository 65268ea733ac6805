"""The FastAPI app that the plugin mounts below `/conduit`: `/v1/…` with the metrics, the pages, and the headers that
limit what a browser may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from conduit_tasks.airflow.api import (
    access,
    dead_letters,
    door,
    files,
    issues,
    live,
    overview,
    pipelines,
    problems,
    records,
    replays,
    series,
    ways,
)
from conduit_tasks.pipeline.names import dag_id

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
"""Policy for browsers: our own files only, in frames of Airflow only. Records with markup are shown as text anyway."""
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOLDER = resources.files("conduit_tasks.airflow") / "pages"
_PAGES = {
    file.name: _TYPES[file.name[file.name.rindex(".") :]]
    for file in _FOLDER.iterdir()
    if file.name.endswith(tuple(_TYPES))
}

app = FastAPI(
    title="Conduit",
    version="1",
    description="Pipelines, their deliveries and dead letters. Errors are problem JSON (RFC 9457). "
    "Authenticate as for Airflow's own API; a change by cookie also needs the header `X-Conduit-Request: 1`.",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)
problems.install(app)
app.include_router(pipelines.router)
app.include_router(dead_letters.router)
app.include_router(records.router)
app.include_router(ways.router)
app.include_router(issues.router)
app.include_router(issues.of_all)
app.include_router(replays.router)
app.include_router(series.router)
app.include_router(live.router)
app.add_middleware(door.Bounded)


@app.middleware("http")
async def headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Adds to every answer the headers that limit what a browser may do with it."""
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers.setdefault("Cache-Control", "no-store")
    return response


@app.get("/openapi.json", include_in_schema=False)
def described(_: GetUserDep) -> JSONResponse:
    """Returns the description of this API; FastAPI's own route would show it to everybody."""
    return JSONResponse(app.openapi())


@app.get("/v1/metrics", tags=["metrics"], response_class=PlainTextResponse)
def metrics(user: GetUserDep) -> PlainTextResponse:
    """Returns metrics of the pipelines that this user may see, in Prometheus' text format."""
    seen = access.visible(user)
    found = [p for p in files.pipelines() if dag_id(p.id) in seen]
    return PlainTextResponse(overview.exposed(found), media_type="text/plain; version=0.0.4; charset=utf-8")


@app.get("/pages/", include_in_schema=False)
def page(_: GetUserDep) -> Response:
    """Returns the one page; it shows what the address names behind `#`, or the DAG whose frame it is in."""
    return Response(_text("index.html"), media_type="text/html; charset=utf-8")


@app.get("/pages/{name}", include_in_schema=False)
def part(_: GetUserDep, name: str) -> Response:
    """Returns a script or the style sheet of the page."""
    if name not in _PAGES:
        raise HTTPException(404, f"there is no {name}; the pages begin at /conduit/pages/")
    return Response(_text(name), media_type=_PAGES[name], headers={"Cache-Control": "no-cache"})


def _text(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
