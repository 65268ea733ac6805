"""Advice on an issue: what to do, by what failed (records or a task), where, and the class of its error."""

from __future__ import annotations

import re

from conduit_tasks.topology import Node

_REFUSED = "Correct the records by a processor of {id}, or the destination's settings; then send the issue again."
_DOWN = (
    "{id} gave no good answer in any attempt: check that it is up. If it needs longer, raise `delivery.timeout` or the "
    "retries (`delivery.retry`). Then send the issue again."
)
_STATUS = {
    "401": "Renew the credentials in the settings of {id}; then send the issue again.",
    "403": "Give the credentials of {id} the right to write there; then send the issue again.",
    "404": "Check the address in the settings of {id}; then send the issue again. If it is a service that is being "
    "deployed, have the status tried again (`retry-on`).",
    "408": _DOWN,
    "409": "See which state the target has of these records. If it is only for a moment, have the status tried again "
    "(`retry-on`); then send the issue again.",
    "413": "The target takes no records of this size: make them smaller by a processor of {id}, or raise its limit; "
    "then send the issue again.",
    "429": "{id} is asked too often: set `delivery.rate-limit`, or lower `max-unconfirmed`; then send the issue again.",
}
_LETTERS = {
    "killed its worker": "Reading or sending one of these records ended its process (memory, or a fault in native "
    "code): see the record, correct the processor or the destination, then send the issue again.",
    "parked": "These wait for an earlier dead letter of their key: send that one again, or give it up "
    "(`conduit dead-letters purge`).",
    "decode": "The source cannot read these by its settings (`format`, schema): correct the settings or the data, then "
    "send their interval again (`conduit replay`).",
    "schema": "Change the table, or the schema, so that these records fit, or correct their producer "
    "(docs/schema-evolution.md); then send the issue again.",
    "unwritable": "These can be written nowhere as they are (size, depth, or a value that JSON has not): make them "
    "smaller or plain by a processor; then send the issue again.",
    "processor": "Correct the processor in the pipeline's file, and try it on one of these records (`conduit "
    "processors try`, or Try on the page); then send the issue again: it goes through the corrected processors.",
    "refused": _REFUSED,
    "timeout": _DOWN,
    "unavailable": _DOWN,
}
_OTHER_LETTERS = "See the message and one of the records; correct the cause, then send the issue again."
_TASKS = {
    "killed": "See the end of the task's log. Without an error there it was ended from outside, often for lack of "
    "memory: lower `micro-batch`, or give the task more. The next attempt goes on from what was confirmed.",
    "nack window": "More records failed than the window allows: handle the dead letters, then start the pipeline "
    "(`conduit start`).",
    "ConfigError": "Correct the pipeline's file or the setting that the message names; `conduit validate` checks it. "
    "The next run goes on.",
    "ConnectionMissing": "Define the connection in Airflow, or make its secrets backend answer. The next run goes on.",
    "NotDurable": "Set up Redis so that it keeps what it accepted: `conduit broker check` names the settings.",
    "StateLost": "Restore the state by the command that the message names, before anything else runs.",
    "BrokerUnavailable": "Bring Redis back: the next attempt goes on from what was confirmed.",
    "BrokerFull": "Raise Redis' `maxmemory`, or let the destinations that are behind catch up.",
    "Unavailable": "Bring the system at {node} back: the next run goes on from what was confirmed.",
    "SourceError": "Correct the source as the message says; the next run reads it again.",
    "AckFailed": "Bring the source back: its acks are given by the next run, and nothing is lost meanwhile.",
    "InvariantBroken": "Stop the pipeline (`conduit stop`) and report this with the task's log: it is a fault "
    "of Conduit Tasks.",
}
_STOPPED = "It stopped at these records: handle their issue of dead letters, then start the pipeline (`conduit start`)."
_OTHER_TASKS = "See the task's log; correct the cause. The next run goes on from what was confirmed."
_HTTP = re.compile(r"http (\d{3})")


def advice(node: str, error_class: str, *, of_task: bool) -> str:
    """Returns what to do, in a sentence or two. `of_task`: a task failed; a class of records is then that of the nack
    that stopped it."""
    if of_task and (said := _TASKS.get(error_class)):
        return said.format(node=node)
    if found := _HTTP.fullmatch(error_class):
        said = _STATUS.get(found[1]) or (_REFUSED if found[1] < "500" else _DOWN)
    else:
        said = _LETTERS.get(error_class, "")
    if of_task:
        return _STOPPED if said else _OTHER_TASKS
    return (said or _OTHER_LETTERS).format(id=Node(node).id or node)
