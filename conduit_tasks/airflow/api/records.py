"""`/v1/pipelines/{id}/records` and `…/file`: the last records of a stage, what the pipeline's file makes of a record,
and the file's text without its secrets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import Field

from conduit_tasks.airflow.api.access import SeenRecords, may_read_file, same_site
from conduit_tasks.airflow.api.door import Body
from conduit_tasks.operate import apart
from conduit_tasks.operate.apart import peeked, tried
from conduit_tasks.operate.ask import Ask
from conduit_tasks.operate.peek import MOST

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}", tags=["records"])

AT_ONCE, WAITING, PATIENCE = 2, 4, 5.0
"""Looks and trials at a time in one process of the server; others that wait for their turn, and seconds that they do:
each that waits has a thread of those that serve all of Airflow."""
_turns, _places = threading.BoundedSemaphore(AT_ONCE), threading.BoundedSemaphore(AT_ONCE + WAITING)
Text = Annotated[str, Field(max_length=apart.RECORD)]


class Try(Body):
    """One of `record` (an OpenCDC record, JSON as a text), `letter` (destination, epoch, micro-batch, seq, ordinal of a
    dead letter) and `place` (of a record in the spool, as the list of last records has it). `node`: where it enters.
    `file`: a changed text of the pipeline's file; of that only what depends on the record alone runs, and what is in
    the file in force as well."""

    record: Text | None = None
    letter: Annotated[str, Field(max_length=512)] | None = None
    place: Annotated[str, Field(max_length=512)] | None = None
    node: str = Field("", max_length=256)
    file: Text | None = None


@router.get("/records")
def list_last_records(
    pipeline: SeenRecords,
    node: Annotated[
        str,
        Query(
            max_length=256,
            description="sources.ID, processors (the sealed micro-batch), destinations.ID; after /ID a processor.",
        ),
    ] = "processors",
    last: Annotated[int, Query(ge=1, le=MOST, description="So many at most.")] = 20,
) -> dict[str, Any]:
    """Returns the last records of a stage, newest first, from the newest files of the spool; at a destination with the
    answer that the ledger has. `steps`: what the processors that follow make of each, before and after each of them, up
    to the one that `node` names; at a destination what would be `sent`; null if that is not found in time. Fields named
    secret, and those under `mask` of the file, are `***`. `more`: there may be older ones."""
    with turn():
        return peeked(pipeline, node, last)


@router.post("/records/try", dependencies=[Depends(same_site)])
def try_record(pipeline: SeenRecords, body: Try) -> dict[str, Any]:
    """Returns what the processors and triggers make of a record: each step with the records before and after it, or the
    error, the expression at fault and its place in the file. Nothing is sent; processors that make calls over the
    network, and those that need Spark, are left out. `error`: the file or the record cannot be used."""
    if [body.record, body.letter, body.place].count(None) != 2:
        raise HTTPException(422, "give exactly one of record, letter and place")
    letter = None if body.letter is None else _letter(body.letter)
    ask = Ask(
        pipeline.id,
        record=body.record,
        letter=letter,
        place=body.place,
        node=body.node,
        text=body.file,
        file="the text",
    )
    with turn():
        return tried(ask)


@contextmanager
def turn() -> Iterator[None]:
    """Bounds what is done at a time. Raises HTTPException 503."""
    busy = HTTPException(503, f"{AT_ONCE} others look at records at the moment; ask again")
    if not _places.acquire(blocking=False):
        raise busy
    try:
        if not _turns.acquire(timeout=PATIENCE):
            raise busy
        try:
            yield
        finally:
            _turns.release()
    finally:
        _places.release()


@router.get("/file")
def show_file(pipeline: SeenRecords, request: Request, user: GetUserDep) -> dict[str, Any]:
    """Returns the text of the pipeline's file, without its secrets, for users who may read the code of the DAGs of all
    pipelines in it."""
    from conduit_tasks.pipeline.hidden import without_secrets

    path = Path(pipeline.file)
    may_read_file(path, request, user)
    return {"pipeline": pipeline.id, "file": path.name, "text": without_secrets(path.read_text(encoding="utf-8-sig"))}


def _letter(text: str) -> list[Any]:
    destination, *numbers = text.split("/")
    if len(numbers) != 4 or not all(each.isdecimal() and len(each) < 19 for each in numbers):
        raise HTTPException(422, "letter: destination/epoch/micro-batch/seq/ordinal of a dead letter was expected")
    return [destination, *map(int, numbers)]
