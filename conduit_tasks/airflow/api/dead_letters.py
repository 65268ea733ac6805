"""`/v1/pipelines/{id}/dead-letters`: records that could not be delivered, each with its error, and their redrive by a
run of Airflow (C14, X2)."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from math import inf
from typing import Annotated, Any

import pyarrow.compute as pc
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from pydantic import Field

from conduit_tasks.airflow.api.access import Changed, SeenRecords, same_site
from conduit_tasks.airflow.api.door import Body, Number, Time
from conduit_tasks.airflow.api.pipelines import Limit, Offset, page
from conduit_tasks.airflow.api.runs import start
from conduit_tasks.airflow.resend import DEAD_LETTERS
from conduit_tasks.dead_letters import columns
from conduit_tasks.dead_letters.columns import Look
from conduit_tasks.dead_letters.indexed import taken
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore, as_field, fields
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.names import resend_dag_id
from conduit_tasks.record import jsons
from conduit_tasks.settings import settings
from conduit_tasks.topology import Pipeline

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/dead-letters", tags=["dead letters"])

DESTINATION = r"^[A-Za-z0-9_:.\-]{1,128}$"
WITHIN = 0.5
"""Seconds that an answer takes for files of letters that were not read before."""
LISTED = ("destination", "epoch", "micro_batch", "seq", "ord", "id", "node", "error_class", "error", "attempts", "at")
SHOWN = (*LISTED[1:], "connector", "partition", "index", "record")


@router.get("")
def list_dead_letters(  # noqa: PLR0917 - its filters
    pipeline: SeenRecords,
    destination: Annotated[
        str | None, Query(pattern=DESTINATION, description="Only of this one; `_pipeline`: before the fan-out.")
    ] = None,
    error_class: Annotated[str | None, Query(max_length=256, description="Only of this class, such as `http 400`.")] = (
        None
    ),
    since: Annotated[Time | None, Query(description="Only of then or later; UTC where it names no zone.")] = None,
    until: Annotated[Time | None, Query(description="Only of before then.")] = None,
    key: Annotated[str | None, Query(max_length=4_096, description="Only with this key.")] = None,
    issue: Annotated[str | None, Query(max_length=64, description="Only of this issue.")] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists dead letters in their order, each once, and the number of each error class. The list has no records; a
    single dead letter has its record. `pending`: files of letters that are still to be read (those that an earlier
    version wrote take longest); their letters are missing, and are not counted. Ask again until it is 0."""
    chosen = Selection(
        destination, (error_class,) if error_class else (), since, until, issues=(issue,) if issue else ()
    )
    look = looked(pipeline, WITHIN)
    found = taken(look.open, chosen)
    if key is not None:
        found = found.filter(pc.equal(found["key"], key))
    classes = {each["values"]: each["counts"] for each in pc.value_counts(found["error_class"]).to_pylist()}
    rows = found.slice(offset, limit).select([*LISTED, "key"]).to_pylist()
    return {**page(rows, found.num_rows, offset, limit), "classes": classes, "pending": look.left}


class Redrive(Body):
    """Filters of the dead letters to send again; a letter must match every given filter, by one of its values.
    `dry_run`: only counts them."""

    dry_run: bool = False
    destination: str | None = Field(None, pattern=DESTINATION)
    classes: list[str] = Field([], max_length=100)
    since: Time | None = None
    until: Time | None = None
    keys: list[str] = Field([], max_length=1_000)
    micro_batches: list[Number] = Field([], max_length=1_000)
    ids: list[str] = Field([], max_length=1_000)
    issues: list[str] = Field([], max_length=100)


@router.post("/redrive", dependencies=[Depends(same_site)])
def redrive_dead_letters(pipeline: Changed, body: Redrive, user: GetUserDep) -> dict[str, Any]:
    """Sends dead letters again to exactly their destination (X2), by a run of `<pipeline>.resend`; the result is with
    the run's task. Answers with the counts to be sent (`shares`), the reasons for those that `cannot`, and the time
    (`at`): those that fail again are newer. With `dry_run` that is all."""
    from conduit_tasks.resend.select import shares

    at = datetime.now(UTC).isoformat()
    chosen = Selection(
        body.destination,
        tuple(body.classes),
        body.since,
        body.until,
        tuple(body.keys),
        tuple(body.micro_batches),
        tuple(body.ids),
        tuple(body.issues),
    )
    with opened(pipeline, "look") as context:
        found, cannot = shares(context, chosen, look=looked(pipeline))
    said: dict[str, Any] = {
        "pipeline": pipeline.id,
        "at": at,
        "shares": [share.as_json() for share in found],
        "cannot": cannot,
        "dag_id": resend_dag_id(pipeline.id),
        "run_id": None,
    }
    if body.dry_run or not found:
        return said
    said["run_id"] = f"redrive__{uuid.uuid4()}"
    conf = {
        "what": DEAD_LETTERS,
        "destinations": [body.destination] if body.destination else [],
        "classes": body.classes,
        "since": body.since and body.since.isoformat(),
        "until": body.until and body.until.isoformat(),
        "keys": body.keys,
        "micro-batches": body.micro_batches,
        "ids": body.ids,
        "issues": body.issues,
    }
    start(said["dag_id"], said["run_id"], str(user.get_name()), conf)
    return said


@router.get("/{destination}/{epoch}/{micro_batch}/{seq}/{ordinal}")
def show_dead_letter(  # noqa: PLR0917 - what names a letter
    pipeline: SeenRecords,
    destination: Annotated[str, Path(pattern=DESTINATION)],
    epoch: Number,
    micro_batch: Number,
    seq: Number,
    ordinal: Number,
) -> dict[str, Any]:
    """Returns one dead letter with its record."""
    root, key = settings().path(settings().dead_letters), (epoch, micro_batch, seq, ordinal)
    gone = HTTPException(404, f"no such dead letter of {destination}; it may have been sent again: list them again")
    look = looked(pipeline, WITHIN)
    path = look.find(destination, key)
    if path is None and look.left:
        path = looked(pipeline).find(destination, key)
    if path is None:
        raise gone
    try:
        letters = DeadLetterStore(root, pipeline.id).table(path, SHOWN)
    except FileNotFoundError:
        raise gone from None
    # A file holds each letter once.
    [row] = letters.filter(pc.equal(fields(letters), as_field(key))).to_pylist()
    return {**row, "destination": destination, "record": jsons.exact(row["record"])}


def looked(pipeline: Pipeline, within: float = inf) -> Look:
    """Returns the letters of a pipeline as they are now, read as far as they were not read before. `within`: seconds
    after which files may be left to the next answer."""
    return columns.look(settings().path(settings().dead_letters), pipeline.id, within)
