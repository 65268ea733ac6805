# ruff: noqa: E501 - the patches are lines of other files
"""Broken guarantees of modules, some of them with a script."""

from __future__ import annotations

from tests.verify.mutant import Mutant, lua

ASKED = "so let it be called.\n        return 0.0"
TAKEN_OVER = "after.takes_over(node) or course.now - after.since > TAKES_OVER"
ENDLESS = "            async with asyncio.timeout(CLOSING):\n                await self._destination.close()"
WRITE = "        first, last = int(chunk.seqs[0]), int(chunk.seqs[-1])\n        work = self._work\n"
HURRIED = """        if work.chain is None and not work.culprits and len(chunk.seqs) == work.matched:
            self._port.confirm([(0, work.total - 1)], {"matched": chunk.records, "delivered": chunk.records})
"""

MODULES = [
    Mutant(
        "a lease that nobody asks for behind a clock that went back",
        "broker/leases.py",
        {ASKED: "so let it be called.\n        return int(ttl or 0) / 1e6 + grace"},
        "clocks",
        begin=69,
    ),
    Mutant(
        "what is staged is read again",
        "micro_batch/read.py",
        {'            and found.state == "open"\n': "", "            and source.node not in found.stages\n": ""},
        "restage",
        begin=27,
    ),
    Mutant(
        "connections are waited for without end",
        "delivery/attempts.py",
        {ENDLESS: ENDLESS.replace("timeout(CLOSING)", "timeout(None)")},
        "silence",
    ),
    Mutant(
        "commit_ack before the source is told",
        "micro_batch/source_ack.py",
        {
            "                began = time.monotonic()\n": "                began = time.monotonic()\n                context.broker.acks.commit(source_id, due, lease.token, {})\n",
            "            context.broker.acks.commit(source_id, due, lease.token, took)\n": "",
        },
        begin=4,
    ),
    Mutant(
        "collection beyond proven",
        "micro_batch/collection.py",
        {"due[: proven(context, due)]": "due"},
        "collect",
        begin=29,
    ),
    Mutant(
        "a spool file collected too early",
        "broker/collection.py",
        {"(collected + 1, min([sealed, *cursors, *acked]), sealed)": "(collected + 1, sealed, sealed)"},
        "collect",
        Mutant(
            "",
            "micro_batch/collection.py",
            {"due[: proven(context, due)]": "due"},
            also=lua("", "begin_collect", "  if passed < m then return broken(", "  if false then return broken("),
        ),
    ),
    Mutant(
        "ack before the last destination",
        "micro_batch/source_ack.py",
        {
            "    destinations = [d.id for d in context.pipeline.destinations]\n    given": "    destinations = [d.id for d in context.pipeline.destinations][:-1]\n    given"
        },
        "collect",
        begin=29,
    ),
    Mutant(
        "vote after store",
        "delivery/committer.py",
        {
            "        accepted, stopped = self._vote(flush)\n": "        if hurried := flush.settled(None).letters:\n            self._store(hurried)\n        accepted, stopped = self._vote(flush)\n",
        },
        "trip",
        begin=31,
    ),
    Mutant(
        "vote after store, before the fan-out",
        "micro_batch/seal.py",
        {
            "    queue = pipeline.dead_letters\n": "    queue = pipeline.dead_letters\n    if letters:\n        context.dead_letters(queue, None).store(list(letters.letters()))\n",
        },
        "trip",
    ),
    Mutant(
        "dead letters thrown away",
        "dead_letters/store.py",
        {"for part in portions(letters):": "for part in ():"},
        begin=4,
    ),
    Mutant(
        "letters brought back only where none is left",
        "dead_letters/restored.py",
        {
            "        if rows:\n            out[keys.dead(own)]": "        if rows and not broker.dead_letters.count(own):\n            out[keys.dead(own)]"
        },
        "older",
        begin=8335,
    ),
    Mutant(
        "letters that are not brought back",
        "dead_letters/restored.py",
        {"        if rows:\n            out[keys.dead(own)]": "        if False:\n            out[keys.dead(own)]"},
        "older",
    ),
    Mutant(
        "a forgotten fsync",
        "connectors/file/one_file.py",
        {"size)\n            os.fsync(self._fd)\n": "size)\n"},
        "power",
    ),
    Mutant(
        "what is gone is passed over unasked",
        "connectors/missing.py",
        {
            'if source.settings["missing"] != "skip":\n            raise Missing(f"{error}. {ways_out(source': 'if False:\n            raise Missing(f"{error}. {ways_out(source'
        },
        "vanish",
        begin=77,
    ),
    Mutant(
        "confirmed before it is written",
        "delivery/batch_wise.py",
        {WRITE: WRITE + HURRIED},
        "torn",
    ),
    Mutant(
        "a forgotten cut",
        "connectors/file/one_file.py",
        {"self._size = self._confirmed(path, size, state)": "self._confirmed(path, size, state); self._size = size"},
        "torn",
    ),
    Mutant(
        "of a batch that is cut only the first part is taken",
        "delivery/chunks.py",
        {
            "_small(handed.coming(batches), limit)": "handed.coming(_small(batches, limit))",
            "for part in cut(batch, limit):": "for part in list(cut(batch, limit))[:1]:",
        },
        "sizes",
    ),
    # Runs that last
    Mutant(
        "taken over from before the next is ready",
        "broker/runs.py",
        {"return node in self.ready and self.at_work(node)": "return self.at_work(node)"},
        "handover",
    ),
    Mutant(
        "a run that does not hand over",
        "micro_batch/course.py",
        {f"if after is not None and ({TAKEN_OVER}):": "if False:"},
        "handover",
    ),
    Mutant(
        "a node that never says it is ready",
        "micro_batch/work_through.py",
        {"            self.draining.ready(self.node)\n": ""},
        "handover",
    ),
    # Several tasks
    Mutant(
        "confirmed files of a shard are removed",
        "connectors/file/folder_shards.py",
        {"return mine and not rows.confirmed(int(place[5]))": "return mine"},
        "divided",
        begin=8380,
    ),
    # What is sent again
    Mutant(
        "letters of destinations dispatched before they are stored",
        "resend/before_fan_out.py",
        {"            DeadLetterStore(self._root, pipeline.id, id).store(each)\n": "            pass\n"},
        "resend",
        begin=44,
    ),
    Mutant(
        "portion of a replay that counts as whole by its first record",
        "resend/replay.py",
        {"RangeSet(())).count == portion.total": "RangeSet(())).count > 0"},
        "resend",
        begin=7636,
    ),
    Mutant(
        "end of a replay without a portion that Redis has forgotten meanwhile",
        "resend/replay.py",
        {"if not _whole(share, n, portion))": "if n > sent and not _whole(share, n, portion))"},
        "resend",
        begin=3610,
    ),
    Mutant(
        "portion that Redis has forgotten meanwhile, sent after the next one",
        "resend/replay.py",
        {"number = next(left, None)": "number = min(left, key=lambda n: (n <= sent, n), default=None)"},
        "resend",
        begin=3610,
    ),
]
