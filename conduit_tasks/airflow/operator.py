"""The submit operator of a node: checks for work, starts one Spark application, turns how that ended into the task's
state, and tells steps, assets and OpenLineage what was delivered.

Arguments are ids only; the application asks the broker for its work. So a retry, a cleared task and a second run of the
same DAG all do the right thing, and nothing secret is in a command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow import lineage
from conduit_tasks.airflow.asset_events import tell_assets
from conduit_tasks.airflow.compat import (
    RESUMES,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from conduit_tasks.airflow.failing import NodeFailed
from conduit_tasks.airflow.follow import follow
from conduit_tasks.airflow.forked import Application, spare
from conduit_tasks.airflow.hook import ConduitSubmitHook
from conduit_tasks.airflow.links import PipelineLink
from conduit_tasks.airflow.on_delivered import stepping
from conduit_tasks.airflow.tasks import fail_without_retry, run_of
from conduit_tasks.application import APPLICATION
from conduit_tasks.errors import ConfigError, PipelineStopped
from conduit_tasks.exit_codes import ENDED, HELD, SAID, STOPPED, WAITING
from conduit_tasks.logs import about
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.at_work import AtWork


class ConduitSubmitOperator(SparkSubmitOperator):
    """Runs the application of one node (`sources.<id>`, `processors`, `destinations.<id>`) of one pipeline.

    `drain_limit`: seconds that a run lasts at most. `quick_jit`: False for nodes that run long SQL in the JVM.
    `durable` is always False: the resumable path would find the finished job of a cleared task and return.

    Ends as skipped if there is nothing to do or the destination is waited for; as failed without retry if the pipeline
    is stopped or a setting is wrong; as failed with Airflow's retry if the machinery broke.
    """

    template_fields: Sequence[str] = ()
    operator_extra_links = (PipelineLink(),)

    def __init__(
        self,
        *,
        pipeline_id: str,
        node: str,
        drain_limit: float,
        quick_jit: bool = True,
        conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        if RESUMES:
            # Before, no job is ever resumed, and the setting is warned of in each task's log.
            kwargs["durable"] = False
        super().__init__(application=str(APPLICATION), conn_id=conn_id, name=f"conduit {pipeline_id} {node}", **kwargs)
        self.pipeline_id, self.node = pipeline_id, node
        self.drain_limit, self.quick_jit = drain_limit, quick_jit
        self._spare: Application | None = None
        self._lineage: lineage.Lineage | None = None

    def execute(self, context: Any) -> None:
        """Checks the connection and the work, submits, and turns the exit code into a state of the task."""
        node = Node(self.node)
        destination = node.id if node.kind == "destinations" else None
        with about(pipeline=self.pipeline_id, node=self.node, run=self._run(context), destination=destination):
            skipped = False
            try:
                self._execute(context, destination)
            except AirflowSkipException:
                skipped = True
                # OpenLineage's provider would tell of them.
                self.outlets = []
                raise
            finally:
                if lineage.is_wanted():
                    # Now: the provider asks in a child of this process, which must not ask Airflow for connections.
                    self._lineage = lineage.of_node(self.pipeline_id, self.node, self._run(context), skipped=skipped)
            if destination and self.outlets:
                self.outlets = tell_assets(self.pipeline_id, destination, self._run(context), context, self.outlets)

    def _execute(self, context: Any, destination: str | None) -> None:
        from conduit_tasks.micro_batch.at_work import at_work

        ti, skipped = context["ti"], None
        steps = stepping(self.pipeline_id, destination, self._run(context)) if destination else nullcontext()
        # The application is forked before the steps start a thread.
        with spare() as self._spare, steps, at_work(self.pipeline_id, self._run(context), self.node) as ends:
            try:
                with fail_without_retry():
                    check_connection(self._conn_id)
                self._work(context, ends)
            except AirflowSkipException as skip:
                skipped = skip
            except AirflowFailException:
                raise
            except Exception:
                if ti.try_number <= ti.max_tries:
                    ends.tried_again_in = self.retry_delay.total_seconds()
                raise
        if (course := ends.follows) is not None:
            why, chosen = ends.again or f"the acks had ended before {self.node}", context["params"].get("destinations")
            follow(ti, self.pipeline_id, course.run, course.began, ends.left, chosen, why)
        if skipped is not None:
            raise skipped

    def _run(self, context: Any) -> str:
        ti = context.get("ti")
        return run_of(self.pipeline_id, getattr(ti, "dag_id", None), context["run_id"])

    def _work(self, context: Any, ends: AtWork) -> None:
        while not self._worked(context, ends):
            self.log.info("what an earlier attempt of this run has left at work has the lease: it is waited for")

    def _worked(self, context: Any, ends: AtWork) -> bool:
        """Does the node's work. Returns False if the job of an earlier attempt, which outlived its driver, has the
        lease."""
        run_id = self._run(context)
        with fail_without_retry():
            self._skip_unless_chosen(context["params"])
            cleared = was_cleared(context["ti"], self.retries)
            if not self._work_needed(run_id, cleared, context["ti"].try_number, ends):
                ends.worked = True
                return True
            self.application_args = self._arguments(run_id, cleared)
            self._inject_lineage(context)
            self._hook = self._get_hook()
        try:
            self._hook.submit(self.application)
        except AirflowException as error:
            owner = str(self._hook.events.get("held", {}).get("owner", ""))
            if self._hook.exit_code == HELD and owner.startswith(f"{run_id}@"):
                return False
            if self._hook.exit_code not in SAID:
                self._died(run_id, self._hook.exit_code)
            outcome = self._outcome(self._hook, error)
            raise outcome from outcome.__cause__ or error
        ends.well = ends.worked = True
        done = self._hook.events.get("done", {})
        if done.get("again"):
            ends.again = f"{self.node}: {done['said']}"
        return True

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Returns what OpenLineage hears of this task when it has ended; its provider asks for it."""
        return None if self._lineage is None else lineage.as_openlineage(self._lineage)

    def on_kill(self) -> None:
        # The provider's method would look for a deployment backend; a task killed before its submit has none.
        if self._hook is not None:
            self._hook.on_kill()

    def _get_hook(self) -> ConduitSubmitHook:
        from conduit_tasks.settings import settings

        return ConduitSubmitHook(
            settings().home.resolve(),
            conn_id=self._conn_id,
            conf={str(key): str(value) for key, value in (self.conf or {}).items()},
            name=str(self.name),
            application_args=list(self.application_args or []),
            quick_jit=self.quick_jit,
            spare=self._spare,
            private=self._connections(),
        )

    def _connections(self) -> dict[str, str]:
        """Returns the environment with the Airflow connections that the node needs. Raises ConnectionMissing."""
        from conduit_tasks import connections
        from conduit_tasks.micro_batch.handed import of_node
        from conduit_tasks.pipeline.load import get_pipeline

        found = of_node(get_pipeline(self.pipeline_id), self.node)
        return {connections.VARIABLE: connections.dumps(found)} if found else {}

    def _inject_lineage(self, context: Any) -> None:
        """Adds OpenLineage's properties of this task, as the provider's `execute`, which this class replaces, does: if
        `[openlineage] spark_inject_parent_job_info` or `spark_inject_transport_info` asks for them."""
        from airflow.providers.common.compat.openlineage.utils import spark

        self.conf = dict(self.conf or {})
        if self._openlineage_inject_parent_job_info:
            self.conf = spark.inject_parent_job_information_into_spark_properties(self.conf, context)
        if self._openlineage_inject_transport_info:
            self.conf = spark.inject_transport_information_into_spark_properties(self.conf, context)

    def _arguments(self, run_id: str, cleared: bool) -> list[str]:
        arguments = ["--pipeline", self.pipeline_id, "--node", self.node, "--run", run_id]
        arguments += ["--drain-limit", f"{self.drain_limit:g}"]
        return [*arguments, "--cleared"] if cleared and Node(self.node).kind == "destinations" else arguments

    def _skip_unless_chosen(self, params: Any) -> None:
        node, chosen = Node(self.node), params.get("destinations") or []
        if node.kind == "destinations" and chosen and node.id not in chosen:
            raise AirflowSkipException(f"{node.id} is not among the destinations chosen for this run")

    def _died(self, run_id: str, exit_code: int | None) -> None:
        """Counts the application as failed if it could not report that itself."""
        from conduit_tasks.errors import ConduitError
        from conduit_tasks.micro_batch.recovery import died

        try:
            died(self.pipeline_id, self.node, run_id, f"exit code {exit_code}")
        except ConduitError as error:
            self.log.warning("the failure is not counted: %s", error)

    def _work_needed(self, run_id: str, cleared: bool, attempt: int, ends: AtWork) -> bool:
        """Waits for work while other nodes of the run bring some. Returns False if the work was cheap enough to be done
        here. Raises AirflowSkipException if there is nothing to do, AirflowFailException if that is so in a retry
        because the node is recovering."""
        from conduit_tasks.micro_batch.work_needed import awaited

        work = awaited(self.pipeline_id, self.node, run_id, limit=self.drain_limit, cleared=cleared)
        if work.again:
            ends.again = f"{self.node}: {work.reason}"
        if work.recovering and attempt > 1:
            # Skipping would hide that this very run has failed.
            raise AirflowFailException(work.reason)
        ends.well = not (work.submit or work.over or work.recovering)
        if not work.submit and not work.done:
            raise AirflowSkipException(work.reason)
        self.log.info("%s", work.reason)
        return work.submit

    def _outcome(self, hook: ConduitSubmitHook, error: AirflowException) -> Exception:
        said = next((e for kind in ("waiting", "held", "stopped", "failed") if (e := hook.events.get(kind))), {})
        reason = str(said.get("reason") or "")
        if hook.exit_code == WAITING:
            return AirflowSkipException(reason or f"{self.node} is unavailable; the next run goes on from its cursor")
        if hook.exit_code == HELD:
            return AirflowSkipException(reason or f"another run works on {self.node}")
        if hook.exit_code == STOPPED:
            stopped = AirflowFailException(reason or f"pipeline {self.pipeline_id} is stopped; see the log above")
            stopped.__cause__ = PipelineStopped(str(stopped))
            return stopped
        if reason:
            return NodeFailed(f"{self.node}: {reason}", str(said.get("error") or "failed"), reason)
        if hook.exit_code == ENDED:
            return NodeFailed(str(error), "", "asked to end")
        how = f"its driver ended without a word (exit code {hook.exit_code}); see the task's log"
        return NodeFailed(str(error), "failed" if hook.exit_code in SAID else "killed", how)


def was_cleared(ti: Any, retries: int | None) -> bool:
    """Returns whether this try is the first one after the task was cleared, not an automatic retry.

    Clearing raises `max_tries` to the tries so far plus `retries`; a retry does not change it.
    """
    return ti.try_number > 1 and ti.try_number - (ti.max_tries - (retries or 0)) == 1


def check_connection(conn_id: str) -> None:
    """Raises ConfigError if the Spark connection does not exist: the provider would silently submit to YARN."""
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigError(
            f"the Airflow connection {conn_id!r} does not exist. Define it, for example "
            f'AIRFLOW_CONN_{conn_id.upper()}=\'{{"conn_type": "spark", "host": "local[*]"}}\''
        ) from None
