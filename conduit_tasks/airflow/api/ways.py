"""`/v1/pipelines/{id}/records/…`: records found by the value of a field, and a record's history as a waterfall."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from conduit_tasks.airflow.api.access import SeenRecords
from conduit_tasks.airflow.api.door import Number
from conduit_tasks.airflow.api.records import turn
from conduit_tasks.ledger.values import LONGEST

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}", tags=["records"])

SHOWN = 20
"""Places of a record of which waterfalls are made, the newest."""


@router.get("/records/find")
def find_records(
    pipeline: SeenRecords,
    value: Annotated[
        str | None,
        Query(max_length=LONGEST, description="The value: numbers as JSON writes them. None: only `fields`."),
    ] = None,
    field: Annotated[str, Query(max_length=512, description="One of `index` of the pipeline's file.")] = ".Key",
) -> dict[str, Any]:
    """Returns the newest records whose key, or another field under `index` of the file, has a value: at most 100, each
    with its place and id; `more`: there may be others. `left`: micro-batches of the spool that were not looked at yet;
    ask again, and the search goes on with them. `searched`: micro-batches without an index, which were gone through,
    and their records. `fields`: those by which records are found. What is masked is not found."""
    from conduit_tasks.ledger.history import found_so_far
    from conduit_tasks.micro_batch.context import open_spool

    fields = list(pipeline.index)
    if value is None:
        return {"fields": fields, "items": [], "left": 0, "more": False, "searched": {"micro_batches": 0, "records": 0}}
    with turn():
        places, search = found_so_far(open_spool(pipeline), pipeline, field, value)
    micro_batches, records = search.searched
    return {
        "fields": fields,
        "items": [asdict(place) for place in places],
        "left": search.left,
        "more": search.more,
        "searched": {"micro_batches": micro_batches, "records": records},
    }


@router.get("/records/{record_id}/history")
def show_history(
    pipeline: SeenRecords,
    record_id: Annotated[str, Path(pattern=r"^[0-9A-Fa-f]{8,128}$", description="The record's id.")],
    micro_batch: Annotated[Number | None, Query(description="Only in this one; a quicker look.")] = None,
) -> dict[str, Any]:
    """Returns every attempt at this record, at each destination, from the ledger, and for each of its places the
    overall `state` (acked, nacked or open) and its way: `steps` (read, processed, sealed, attempts, acked; `began` and
    `ended` in seconds since the epoch, null: not stored), `targets` (first attempt, number, answer, seconds) and
    `notes`, which say what is not stored. `left`: micro-batches of the spool that were not searched yet; ask again, and
    the search goes on with them."""
    from conduit_tasks.ledger.history import attempts_at, places_so_far
    from conduit_tasks.ledger.messages import Overall
    from conduit_tasks.ledger.store import Ledger
    from conduit_tasks.ledger.waterfall import Waterfalls
    from conduit_tasks.micro_batch.context import open_spool
    from conduit_tasks.settings import settings

    spool = open_spool(pipeline)
    with turn():
        places, left = places_so_far(spool, pipeline.id, record_id.lower(), micro_batch)
    rows = attempts_at(Ledger(spool, pipeline.id), places).to_pylist()
    overall = Overall(pipeline, spool, settings().path(settings().dead_letters))
    ways = Waterfalls(pipeline, spool)
    found = []
    for n, place in enumerate(places):
        way = ways.of(place).to_dict() if n < SHOWN else {"steps": [], "targets": [], "notes": []}
        found.append({**way, **asdict(place), "state": overall.of(place.micro_batch).state(place.seq)})
        found[-1].pop("place", None)
    return {"record": record_id, "places": found, "attempts": rows, "left": left}
