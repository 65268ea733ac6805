"""`/v1/pipelines/{id}/replays`: replays of an interval to chosen destinations, and their results (SEMANTICS X3)."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends
from pydantic import ConfigDict, Field

from conduit_tasks.airflow.api.access import Changed, Seen, same_site
from conduit_tasks.airflow.api.door import Body
from conduit_tasks.airflow.api.files import pipelines
from conduit_tasks.airflow.api.runs import results, start
from conduit_tasks.airflow.resend import DEAD_LETTERS, what_of
from conduit_tasks.pipeline.names import dag_id, earlier_dag_id, resend_dag_id, safe_name
from conduit_tasks.resend.interval import ask
from conduit_tasks.topology import Node

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}", tags=["replay"])

SHOWN = 20


class Replay(Body):
    """Interval of event times from `from` up to `to`, exclusive (UTC if they name no zone); no destination = all.
    `dry_run`: only counts the records that would be sent."""

    model_config = ConfigDict(populate_by_name=True)
    start: Annotated[str, Field(alias="from", max_length=64)]
    end: Annotated[str, Field(alias="to", max_length=64)]
    destinations: list[Annotated[str, Field(max_length=128)]] = Field([], max_length=1_000)
    what: Literal["missing", "failed", "all"] = "missing"
    dry_run: bool = False


@router.post("/replay", dependencies=[Depends(same_site)])
def replay(pipeline: Changed, body: Replay, user: GetUserDep) -> dict[str, Any]:
    """Starts a run of `<pipeline>.resend`, which reads the sources; a dry run starts one too, which sends nothing. The
    result is in the list of replays."""
    chosen = ask(pipeline, body.start, body.end, body.destinations, body.what)
    said = {"pipeline": pipeline.id, "dag_id": resend_dag_id(pipeline.id), "run_id": f"replay__{uuid.uuid4()}"}
    conf = {
        "from": body.start,
        "to": body.end,
        "destinations": list(chosen.destinations),
        "what": body.what,
        "dry-run": body.dry_run,
    }
    start(said["dag_id"], said["run_id"], str(user.get_name()), conf)
    return said


@router.get("/replays")
def list_replays(pipeline: Seen) -> dict[str, Any]:
    """Lists the last replays, newest first: state, interval, and once they are known, the counts of records found and
    sent. A run that an earlier version left unfinished has the state `left behind`: Airflow does not go on with it."""
    ids = {Node.destination(safe_name(d.id)): d.id for d in pipeline.destinations}
    dag, earlier, items = resend_dag_id(pipeline.id), earlier_dag_id(pipeline.id), []
    dags = [dag] if any(dag_id(p.id) == earlier for p in pipelines()) else [dag, earlier]
    for run in results(dags, SHOWN, lambda conf, run_type: what_of(conf, run_type) != DEAD_LETTERS):
        conf, told = run["conf"], run["results"]
        left = run["dag_id"] == earlier and run["state"] in ("queued", "running")
        start, end = run["interval"] if not conf.get("from") else (conf["from"], conf.get("to"))
        items.append(
            {
                "dag_id": run["dag_id"],
                "run_id": run["run_id"],
                "state": "left behind" if left else run["state"],
                "from": start,
                "to": end,
                "destinations": conf.get("destinations") or [],
                "what": conf.get("what") or "missing",
                "dry_run": bool(conf.get("dry-run")),
                "found": told.get("plan"),
                "sent": {ids[task]: outcome for task, outcome in told.items() if task in ids},
            }
        )
    return {"dag_id": dag, "items": items}
