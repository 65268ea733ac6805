"""The broker's scripts, each a typed call; `scripts/` has a folder for each part of the broker."""

from __future__ import annotations

from conduit_tasks.redis_client import script
from conduit_tasks.redis_client.script import Script

FOLDER = script.of_package("conduit_tasks.broker")


def load(name: str) -> Script:
    """Loads a script of the broker. Raises as `script.load`."""
    return script.load(FOLDER, name)


# access/
NOT_AHEAD = load("not_ahead")
# lifecycle/
REGISTER = load("register")
FAIL = load("fail")
STOP = load("stop")
STOPPED = load("stopped")
START = load("start")
GLANCE = load("glance")
FIGURES = load("figures")
# failures/
RECOVER = load("recover")
RECOVERED = load("recovered")
# versions/
ADOPT = load("adopt")
INTERRUPT = load("interrupt")
RENAMING = load("renaming")
RENAME = load("rename")
MATCHED = load("matched")
FORGET = load("forget")
# rebuild/
REBUILD_BEGIN = load("rebuild_begin")
REBUILD_WRITE = load("rebuild_write")
REBUILD = load("rebuild")
# runs/
BEGIN_RUN = load("begin_run")
AT_WORK = load("at_work")
READY = load("ready")
LEFT_OUT = load("left_out")
WIND_UP = load("wind_up")
GO_ON = load("go_on")
RING = load("ring")
# micro_batches/
OPEN = load("open")
STAGE = load("stage")
RESTAGE = load("restage")
SEAL = load("seal")
INDEX = load("index")
UNINDEX = load("unindex")
# positions/
PLACE = load("place")
GONE = load("gone")
EMPTIED = load("emptied")
# leases/
ACQUIRE = load("acquire")
RENEW = load("renew")
ATTEMPT = load("attempt")
ATTEMPTED = load("attempted")
RELEASE = load("release")
# deliveries/
CONFIRM = load("confirm")
COMPLETE = load("complete")
VOTE = load("vote")
TOLD = load("told")
# shards/
DIVIDE = load("divide")
TOGETHER = load("together")
CONFIRM_SHARD = load("confirm_shard")
WHOLE = load("whole")
MERGE = load("merge")
# sending/
NUMBER = load("number")
BEGIN_SEND = load("begin_send")
# redeliveries/
REOPEN = load("reopen")
LAPSE = load("lapse")
FINISH = load("finish")
REMEMBER = load("remember")
# dead_letters/
LETTERS = load("letters")
# redrives/
CLAIM = load("claim")
SETTLE = load("settle")
DISPATCH = load("dispatch")
MARK = load("mark")
UNPARK = load("unpark")
PURGE = load("purge")
# breakers/
TRIP = load("trip")
UNTRIP = load("untrip")
# outages/
MISSED = load("missed")
# replays/
TURN = load("turn")
REPLAY_BEGIN = load("replay_begin")
REPLAY_CONFIRM = load("replay_confirm")
REPLAY_END = load("replay_end")
# acks/
BEGIN_ACK = load("begin_ack")
COMMIT_ACK = load("commit_ack")
# collection/
BEGIN_COLLECT = load("begin_collect")
END_COLLECT = load("end_collect")
SLIM = load("slim")
# alerts/
ALERT = load("alert")
ALERTED = load("alerted")
# issues/
DECIDE = load("decide")
FAILED = load("failed")
SUCCEEDED = load("succeeded")
ANNOUNCE = load("announce")
ANNOUNCED = load("announced")
LOOKED = load("looked")
# ingest/
INGEST_ADD = load("ingest_add")
INGEST_PLAN = load("ingest_plan")
INGEST_ACK = load("ingest_ack")
INGEST_RESTORE = load("ingest_restore")
INGEST_SETTLE = load("ingest_settle")
