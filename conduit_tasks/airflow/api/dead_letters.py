"""`/v1/pipelines/{id}/dead-letters`: records that could not be delivered, each with its error (C14)."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from pydantic import Field

from conduit_tasks.airflow.api.access import Changed, SeenRecords, same_site
from conduit_tasks.airflow.api.door import Body, Number, Time
from conduit_tasks.airflow.api.overview import brokers
from conduit_tasks.airflow.api.pipelines import Limit, Offset, page
from conduit_tasks.airflow.api.runs import start
from conduit_tasks.airflow.resend import DEAD_LETTERS
from conduit_tasks.dead_letters.issues import issue_of, key_text
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore, Rows, row_key
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.names import resend_dag_id
from conduit_tasks.settings import settings
from conduit_tasks.topology import Pipeline

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/dead-letters", tags=["dead letters"])

DESTINATION = r"^[A-Za-z0-9_:.\-]{1,128}$"
FRESH = 30.0
"""Seconds for which rows are kept while the index's counts do not change: 100,000 take 3.5 s to read."""
LISTED = ("destination", "epoch", "micro_batch", "seq", "ord", "id", "node", "error_class", "error", "attempts", "at")
_lock = threading.Lock()
_known: tuple[Any, float, Rows] | None = None


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
    single dead letter has its record."""
    rows = [
        row
        for row in open_rows(pipeline)
        if (destination is None or row["destination"] == destination)
        and (error_class is None or row["error_class"] == error_class)
        and (since is None or row["at"] >= since)
        and (until is None or row["at"] < until)
        and (key is None or row["key"] == key)
        and (issue is None or issue_of(row) == issue)
    ]
    classes = Counter(row["error_class"] for row in rows)
    return {**page(rows[offset:][:limit], len(rows), offset, limit), "classes": classes}


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
    the run's task. Answers with the counts to be sent (`shares`) and the reasons for those that `cannot`; with
    `dry_run` that is all."""
    from conduit_tasks.resend.redrive import shares

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
        found, cannot = shares(context, chosen)
    said: dict[str, Any] = {
        "pipeline": pipeline.id,
        "shares": [{"destination": s.destination, "letters": len(s.rows), "parked": s.waiting} for s in found],
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
    wanted = (epoch, micro_batch, seq, ordinal)
    for row in _open(pipeline, destination):
        if (row["epoch"], row["micro_batch"], row["seq"], row["ord"]) == wanted:
            return {
                **{name: row[name] for name in LISTED},
                **{name: row[name] for name in ("connector", "partition", "index", "record")},
            }
    raise HTTPException(404, f"no such dead letter of {destination}; it may have been sent again: list them again")


def open_rows(pipeline: Pipeline) -> Rows:
    """Returns the letters of a pipeline without their records, read again when the index's counts have changed or after
    `FRESH` seconds."""
    global _known  # noqa: PLW0603 - the last one looked at: a page asks again every few seconds
    with brokers() as broker_of:
        counts = [broker_of(pipeline.id).dead_letters.count(id) for id in ("", *(d.id for d in pipeline.destinations))]
    about = (settings().path(settings().dead_letters), pipeline.id, tuple(counts))
    with _lock:
        if _known is None or _known[0] != about or time.monotonic() - _known[1] > FRESH:
            began = time.monotonic()
            found = _open(pipeline)
            rows = [{**{name: row[name] for name in LISTED}, "key": key_text(row["record"]["key"])} for row in found]
            _known = (about, began, rows)
        return _known[2]


def _open(pipeline: Pipeline, destination: str | None = None) -> Rows:
    """Returns the rows of the store that no redrive has settled."""
    root = settings().path(settings().dead_letters)
    store, marks = DeadLetterStore(root, pipeline.id), Marks(root, pipeline.id)
    settled = {name: marks.read(name) for name in store.destinations()}
    return [row for row in store.list(destination) if row_key(row) not in settled[row["destination"]]]
