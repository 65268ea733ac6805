"""`/v1/pipelines/{id}/issues`: dead letters and failed tasks grouped by their cause, and what somebody decided."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Query

from conduit_tasks.airflow.api.access import Changed, SeenRecords, same_site
from conduit_tasks.airflow.api.dead_letters import looked
from conduit_tasks.airflow.api.door import Body, Time
from conduit_tasks.airflow.api.overview import brokers
from conduit_tasks.airflow.api.pipelines import Limit, Offset, page
from conduit_tasks.dead_letters.issues import Issue, as_json
from conduit_tasks.operate.issues import is_one, together
from conduit_tasks.topology import Pipeline

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/issues", tags=["dead letters"])

IssueId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", description="The issue's id, as in the list.")]
IssueState = Literal["open", "acknowledged", "muted", "resolved"]


class Decide(Body):
    """Body of a decision. `open` takes the last one back; `until`: end of a mute, none: until it is taken back."""

    state: IssueState
    until: Time | None = None


@router.get("")
def list_issues(
    pipeline: SeenRecords,
    state: Annotated[IssueState | None, Query(description="Only with this state.")] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Lists issues: open dead letters, and failed attempts at tasks, of one node, class and shape of message, open ones
    first, then the newest. One that was resolved is open again if it is seen again, one that was muted if its time is
    over; one of a task is resolved once the task has succeeded."""
    found = [issue for issue in _issues(pipeline) if state in (None, issue.state)]
    return page([as_json(issue) for issue in found[offset:][:limit]], len(found), offset, limit)


@router.post("/{issue_id}", dependencies=[Depends(same_site)])
def decide_issue(pipeline: Changed, issue_id: IssueId, body: Decide, user: GetUserDep) -> dict[str, Any]:
    """Acknowledges an issue, mutes it, says that it is resolved, or opens it again."""
    with brokers() as broker_of:
        if not is_one(issue_id, looked(pipeline).open, broker_of(pipeline.id)):
            raise HTTPException(404, f"{pipeline.id} has no issue {issue_id}; its letters may have been sent again")
        until = None if body.until is None else body.until.timestamp()
        broker_of(pipeline.id).issues.decide(issue_id, body.state, str(user.get_name()), until)
    return {"pipeline": pipeline.id, "issue": issue_id, "state": body.state}


def _issues(pipeline: Pipeline) -> list[Issue]:
    with brokers() as broker_of:
        return together(looked(pipeline).open, broker_of(pipeline.id))
