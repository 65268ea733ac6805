"""`/v1/pipelines…`: list, show, start, stop, topology, micro-batches, positions, the ledger."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from pydantic import Field

from conduit_tasks.airflow.api import overview
from conduit_tasks.airflow.api.access import Changed, Seen, SeenRecords, Show, same_site, visible
from conduit_tasks.airflow.api.door import Body, Number, Time
from conduit_tasks.airflow.api.files import pipelines
from conduit_tasks.airflow.api.runs import see_to_a_run
from conduit_tasks.errors import ConfigError
from conduit_tasks.operate import control, positions
from conduit_tasks.pipeline.names import dag_id

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"])

Offset = Annotated[int, Query(ge=0, le=10_000_000, description="How many to leave out.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Size of a page.")]
Status = Literal["running", "stopping", "stopped", "recovering", "degraded"]


class Start(Body):
    """Body of a start. `destination`: only this one of an isolated pipeline."""

    destination: str | None = Field(None, max_length=128)


class Place(Body):
    """Position of a source. `tokens`: part → token, as shown. `forget`: parts that begin as new parts do."""

    source: str = Field(max_length=128)
    tokens: dict[str, Any] = Field({}, max_length=10_000)
    forget: list[str] = Field([], max_length=10_000)
    dry_run: bool = False


class Stop(Body):
    """Body of a stop. `force`: at once, and whatever is not sealed is dropped (C16). `deadline`: seconds for the
    delivery of the rest. `destination`: only this one of an isolated pipeline, at once; its cursor stays (X1)."""

    destination: str | None = Field(None, max_length=128)
    force: bool = False
    deadline: float = Field(60.0, ge=0, le=86_400)


def page(items: list[dict[str, Any]], total: int | None, offset: int, limit: int) -> dict[str, Any]:
    """Returns one page of a list, with the total number of items."""
    return {"items": items, "total": total, "offset": offset, "limit": limit}


@router.get("")
def list_pipelines(  # noqa: PLR0917 - its filters
    user: GetUserDep,
    show: Show,
    q: Annotated[str, Query(max_length=128, description="Part of the id.")] = "",
    status: Annotated[Status | None, Query(description="Only with this status.")] = None,
    dag: Annotated[str | None, Query(max_length=250, description="Only the one with this DAG.")] = None,
    attention: Annotated[bool, Query(description="Only those that need somebody.")] = False,
    sort: Annotated[Literal["id", "attention"], Query(description="By id, or what needs somebody first.")] = "id",
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists the pipelines that this user may see, with status, first error, lag and what was read in each five minutes
    of the last two hours; filtered or sorted by more than the id, with a `summary` of all of them.

    What needs somebody, in this order: degraded; late (`deadline`, or the `lag` of an alert), or a destination stopped;
    recovering, or a destination that does not answer; with dead letters; stopped."""
    seen = visible(user)
    found = [
        p for p in pipelines() if dag_id(p.id) in seen and q.lower() in p.id.lower() and dag in (None, dag_id(p.id))
    ]
    if status is None and not attention and sort == "id":
        rows, total, summary = overview.rows(found[offset : offset + limit]), len(found), None
    else:
        whole = overview.rows(found)
        every = [row for row in whole if status in (None, row["status"]) and (row["attention"] or not attention)]
        if sort == "attention":
            every.sort(key=lambda row: (-row["attention"], -row["age"], row["id"]))
        rows, total, summary = every[offset : offset + limit], len(every), overview.summary(whole)
    return {**page([show(row["id"], row) for row in rows], total, offset, limit), "summary": summary}


@router.get("/{pipeline_id}")
def show_pipeline(pipeline: Seen, show: Show) -> Any:
    """Returns status, first error, sources with positions, destinations with cursor, lag, counts and lease."""
    return show(pipeline.id, overview.details(pipeline))


@router.get("/{pipeline_id}/topology")
def show_topology(pipeline: Seen) -> dict[str, Any]:
    """Returns sources, processors and destinations; no settings."""
    return overview.topology(pipeline)


@router.get("/{pipeline_id}/positions")
def show_positions(pipeline: Seen) -> dict[str, Any]:
    """Returns for each source the positions up to which it is planned and acked."""
    return {"pipeline": pipeline.id, "sources": positions.positions(pipeline.id)}


@router.put("/{pipeline_id}/positions", dependencies=[Depends(same_site)])
def set_positions(pipeline: Changed, body: Place) -> dict[str, Any]:
    """Sets the position up to which a source is planned: only while the pipeline is stopped and nothing is in flight
    (else 409)."""
    before, after = positions.place(pipeline.id, body.source, body.tokens, body.forget, dry_run=body.dry_run)
    return {"pipeline": pipeline.id, "source": body.source, "before": before, "after": after}


@router.get("/{pipeline_id}/error")
def show_error(pipeline: Seen, show: Show) -> dict[str, Any]:
    """Returns the first error that stopped the pipeline, and of each stopped destination; null if there is none."""
    found = show(pipeline.id, overview.details(pipeline))
    stopped = {d["id"]: d["error"] for d in found["destinations"] if d["error"]}
    return {"pipeline": pipeline.id, "status": found["status"], "error": found["error"], "destinations": stopped}


@router.get("/{pipeline_id}/destinations")
def list_destinations(pipeline: Seen, show: Show) -> dict[str, Any]:
    """Lists destinations, each with status, cursor, lag (records, bytes, age in seconds), counts, first error and
    lease."""
    found = show(pipeline.id, overview.details(pipeline))["destinations"]
    return page(found, len(found), 0, len(found))


@router.get("/{pipeline_id}/destinations/{destination}")
def show_destination(
    pipeline: Seen, show: Show, destination: Annotated[str, Path(max_length=128, description="The destination's id.")]
) -> dict[str, Any]:
    """Returns one destination, as in the list of destinations."""
    for found in show(pipeline.id, overview.details(pipeline))["destinations"]:
        if found["id"] == destination:
            return dict(found)
    raise HTTPException(404, f"{pipeline.id} has no destination {destination}; see …/destinations")


@router.get("/{pipeline_id}/micro-batches")
def list_micro_batches(
    pipeline: Seen,
    until: Annotated[Time | None, Query(description="Only those opened up to then.")] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists micro-batches, newest first, with their delivery per destination."""
    total, items = overview.micro_batches(pipeline, offset, limit, None if until is None else until.timestamp())
    return page(items, total, offset, limit)


@router.get("/{pipeline_id}/ledger")
def list_attempts(  # noqa: PLR0917 - its filters
    pipeline: SeenRecords,
    destination: Annotated[str | None, Query(max_length=128, description="Only at this one.")] = None,
    since: Annotated[
        Time | None, Query(description="Only what ended then or later; UTC where it names no zone.")
    ] = None,
    micro_batch: Annotated[Number | None, Query(description="Only of this one.")] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists delivery attempts, newest first, with their records and outcomes, from the ledger (X5). Reads as much of it
    as the page needs; `total` is null if there are older attempts that were not read."""
    from conduit_tasks.ledger.store import Ledger
    from conduit_tasks.micro_batch.context import open_spool

    after = None if since is None else since.timestamp()
    book = Ledger(open_spool(pipeline), pipeline.id)
    rows, whole = book.newest(offset + limit, destination, after, micro_batch)
    return page(rows.slice(offset, limit).to_pylist(), rows.num_rows if whole else None, offset, limit)


@router.post("/{pipeline_id}/start", dependencies=[Depends(same_site)])
def start_pipeline(pipeline: Changed, body: Start) -> dict[str, Any]:
    """Starts a stopped or degraded pipeline, or one destination: clears first error and tripped windows (C6)."""
    if body.destination and body.destination not in {d.id for d in pipeline.destinations}:
        known = ", ".join(d.id for d in pipeline.destinations)
        raise ConfigError(f"{pipeline.id} has no destination {body.destination}; it has {known}")
    return {"pipeline": pipeline.id, "status": control.start(pipeline.id, body.destination)}


@router.post("/{pipeline_id}/stop", dependencies=[Depends(same_site)])
def stop_pipeline(pipeline: Changed, body: Stop, user: GetUserDep) -> dict[str, Any]:
    """Stops a pipeline or one destination; a pipeline gracefully unless `force`: answers at once, and a run drains what
    is `left` (C15, C16)."""
    if body.destination:
        status = control.stop_destination(pipeline.id, body.destination)
        return {"pipeline": pipeline.id, "status": status, "left": "", "note": f"{body.destination} is stopped"}
    if body.force:
        return {"pipeline": pipeline.id, "status": control.force_stop(pipeline.id).status, "left": "", "note": ""}
    notes: list[str] = []

    def wake(id: str) -> bool:
        said = see_to_a_run(dag_id(id), str(user.get_name()))
        notes.append(said)
        return not said

    done = control.stop(pipeline.id, deadline=body.deadline, wait=False, wake=wake)
    return {"pipeline": pipeline.id, "status": done.status, "left": done.left, "note": "".join(notes)}
