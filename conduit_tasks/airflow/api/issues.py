"""`/v1/pipelines/{id}/issues`, and `/v1/issues` of all pipelines: dead letters and failed tasks grouped by their cause,
and what somebody decided."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Query

from conduit_tasks.airflow.api.access import Changed, MayRecords, SeenRecords, same_site, visible
from conduit_tasks.airflow.api.dead_letters import WITHIN, looked
from conduit_tasks.airflow.api.door import Body, Time
from conduit_tasks.airflow.api.files import pipelines
from conduit_tasks.airflow.api.overview import brokers
from conduit_tasks.airflow.api.pipelines import Limit, Offset, page
from conduit_tasks.dead_letters.issues import as_json
from conduit_tasks.operate.all_issues import MOST, Kind, Order, Wanted, everywhere
from conduit_tasks.operate.issues import is_one, together
from conduit_tasks.pipeline.names import dag_id

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/issues", tags=["dead letters"])

of_all = APIRouter(prefix="/v1/issues", tags=["dead letters"])

ID = r"^[0-9a-f]{12}$"
IssueId = Annotated[str, Path(pattern=ID, description="The issue's id, as in the list.")]
IssueState = Literal["open", "acknowledged", "muted", "resolved"]


class Decide(Body):
    """Body of a decision. `open` takes the last one back; `until`: end of a mute, none: until it is taken back."""

    state: IssueState
    until: Time | None = None


@router.get("")
def list_issues(
    pipeline: SeenRecords,
    state: Annotated[IssueState | None, Query(description="Only with this state.")] = None,
    issue: Annotated[str | None, Query(pattern=ID, description="Only this one.")] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists issues: open dead letters, and failed attempts at tasks, of one node, class and shape of message, open ones
    first, then the newest. One that was resolved is open again if it is seen again, one that was muted if its time is
    over; one of a task is resolved once the task has succeeded. `pending`: files of dead letters that are still to be
    read; their letters are not counted. Ask again until it is 0."""
    look = looked(pipeline, WITHIN)
    with brokers() as broker_of:
        every = together(look.open, broker_of(pipeline.id))
    found = [each for each in every if state in (None, each.state) and issue in (None, each.id)]
    shown = page([as_json(each) for each in found[offset:][:limit]], len(found), offset, limit)
    return {**shown, "pending": look.left}


@of_all.get("")
def list_all_issues(  # noqa: PLR0917 - its filters
    user: GetUserDep,
    may: MayRecords,
    q: Annotated[str, Query(max_length=128, description="Part of the pipeline's id, or of the error class.")] = "",
    state: Annotated[IssueState | None, Query(description="Only with this state.")] = None,
    kind: Annotated[Kind | None, Query(description="Only of records, or of tasks.")] = None,
    order: Annotated[Order, Query(description="The newest first, or those with the most failures.")] = "newest",
    offset: Annotated[int, Query(ge=0, le=MOST, description="How many to leave out.")] = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists the issues of all pipelines that this user may see, each with its `pipeline`: open ones first, then the
    newest, or those with the most failures. The first 2,000 are paged; `beyond`: how many more there are. `open`: how
    many are open of any kind and name, in how many `pipelines`; `withheld`: pipelines with failures whose tasks' logs
    this user may not read; `unread`: pipeline → why its dead letters could not be read. `pending`: pipelines whose dead
    letters are still to be looked through, as after a restart, or of which `files` are still to be read: their issues
    are not counted, or not in full. Ask again until it is 0."""
    seen = visible(user)
    mine = [p for p in pipelines() if dag_id(p.id) in seen]
    with brokers() as broker_of:
        found = everywhere(broker_of("").redis, mine, Wanted(state, kind, q, order), may, within=WITHIN)
    shown = page([each.as_json() for each in found.issues[offset:][:limit]], min(found.total, MOST), offset, limit)
    more = {name: getattr(found, name) for name in ("open", "pipelines", "withheld", "unread", "pending", "files")}
    return {**shown, "beyond": max(0, found.total - MOST), **more}


@router.post("/{issue_id}", dependencies=[Depends(same_site)])
def decide_issue(pipeline: Changed, issue_id: IssueId, body: Decide, user: GetUserDep) -> dict[str, Any]:
    """Acknowledges an issue, mutes it, says that it is resolved, or opens it again."""
    with brokers() as broker_of:
        if not is_one(issue_id, looked(pipeline).open, broker_of(pipeline.id)):
            raise HTTPException(404, f"{pipeline.id} has no issue {issue_id}; its letters may have been sent again")
        until = None if body.until is None else body.until.timestamp()
        broker_of(pipeline.id).issues.decide(issue_id, body.state, str(user.get_name()), until)
    return {"pipeline": pipeline.id, "issue": issue_id, "state": body.state}
