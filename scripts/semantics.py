"""Writes docs/semantics.md: each promise, where it is enforced, and the tests whose markers name it.

`python scripts/semantics.py` writes it; `--check` only compares, exit code 1 where it is stale.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "semantics.md"

PROMISES: dict[str, tuple[str, str]] = {
    "C1": ("sources, processors, fan-in, fan-out, destinations; at least one of each end", "pipeline/validate.py"),
    "C2": ("each section's processors see only its own records", "micro_batch/rows.py"),
    "C3": ("open, acked or nacked; a graceful stop waits for what is open", "broker/lifecycle.py"),
    "C4": ("filtering acks; acked only when every destination acked", "micro_batch/rows.py"),
    "C5": ("a nack stops, is dropped, or is stored; the source is acked only when that worked", "delivery/teller.py"),
    "C6": ("the nack window: voted in order, once, kept over restarts", "broker/scripts/vote.lua"),
    "C7": ("handlers of state changes", ""),
    "C8": ("an ack that fails stops the pipeline, the error is stored", "micro_batch/acks.py"),
    "C9": ("order per source partition", "delivery/lanes.py"),
    "C10": ("at least once; a record that kills its worker is found", "delivery/careful.py"),
    "C11": ("acks in the order of the records", "broker/acks.py"),
    "C12": ("each ack once; its intent is recorded before it is given", "broker/scripts/begin_ack.lua"),
    "C13": ("what is read and not confirmed is bounded", "micro_batch/plan.py"),
    "C14": ("dead letters keep everything, and can be listed", "delivery/dead_letter_store.py"),
    "C15": ("graceful stop", "broker/scripts/stop.lua"),
    "C16": ("forceful stop; the first error is kept", "broker/scripts/fail.lua"),
    "C17": ("confirmations are per record although writes are batched", "delivery/batch_wise.py"),
    **{
        f"O{n}": (words, path)
        for n, words, path in (
            ("1", "re-send", ""),
            ("2", "re-send, several unconfirmed", ""),
            ("3", "stream: the default between spool and destination", "micro_batch/deliver.py"),
            ("4", "sequential confirm", ""),
            ("5", "strict monotonic index", ""),
            ("5r", "monotonic, relaxed", ""),
            ("6", "continuous index", ""),
            ("6r", "continuous, relaxed", ""),
        )
    },
    "T1": ("accepted events survive; a Redis that loses or evicts is refused", "broker/connection.py"),
    "T2": ("receipt only when stored, ack only when confirmed", ""),
    "T3": ("every record is evaluated against every trigger", "filters/matcher.py"),
    "T4": ("state per target; no target is sent again for another's sake", "broker/scripts/confirm.lua"),
    "T5": ("a record not confirmed in time is sent again, the others are not", "delivery/record_wise.py"),
    "T6": ("completed or failed", "delivery/outcome.py"),
    "T7": ("retries used up, dead letter, confirmed; not stored, not confirmed", "delivery/teller.py"),
    "T8": ("id and idempotency header never change", "record/record.py"),
    "T9": ("retry, backoff, timeout per trigger", "delivery/retry.py"),
    "B1": ("offsets are committed by us", ""),
    "B2": ("one micro-batch in flight by default", "micro_batch/plan.py"),
    "B3": ("a batch carries its offsets and its status", ""),
    "B4": ("commits only for partitions still held", ""),
    "B5": ("failure rewinds", ""),
    "B6": ("several consumers share the partitions", ""),
    "B7": ("a batch that keeps failing does not loop", "delivery/careful.py"),
    "B8": ("guarantees can be chosen, each says what it needs", ""),
    "X1": ("independent cursors", "broker/delivery.py"),
    "X2": ("redrive", ""),
    "X3": ("backfill", ""),
    "X4": ("key parking", ""),
    "X5": ("delivery ledger", ""),
    "X6": ("verify: crashes between any two operations", ""),
    "X7": ("losing Redis loses no event", ""),
    "X8": ("explain", "pipeline/explain.py"),
    "I1": ("acked only after confirmed or stored as dead letter", "broker/acks.py"),
    "I2": ("acks are an in-order prefix, each given once", "broker/acks.py"),
    "I3": ("one unsealed micro-batch, boundaries durable before reading", "broker/scripts/open.lua"),
    "I4": ("only the newest token changes state", "broker/scripts/_shared.lua"),
    "I5": ("every script twice equals once", "broker/scripts/confirm.lua"),
    "I6": ("a sealed file never changes; removed only when nobody needs it", "spool/parts.py"),
    "I7": ("nothing is read past the lag budget", "micro_batch/plan.py"),
    "I8": ("a dead letter is stored before its nack is confirmed", "delivery/teller.py"),
    "I9": ("the first error of a stop is kept", "broker/scripts/fail.lua"),
    "I10": ("outcomes are counted per source position", "delivery/work.py"),
}
"""Number → (the promise in a few words, the file that enforces it; "" = a later part brings it)."""

HEAD = """# Semantics

What holds, by number, where it is enforced (below `conduit_tasks/`) and which tests prove it. C: pipeline, O: pipes,
T: event broker, B: Kafka listener, X: beyond those, I: invariants. *Pending*: no test proves it yet; a later part does.
Made by `python scripts/semantics.py` from the tests' markers.

| # | promise | enforced in | proved in |
|---|---|---|---|
"""


def proofs() -> dict[str, list[str]]:
    """Number → test files (relative to the root) with a `proves` marker that names it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "proves":
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        found[str(argument.value)].add(path.relative_to(ROOT).as_posix())
    return {number: sorted(files) for number, files in found.items()}


def page() -> str:
    """The whole page."""
    proved = proofs()
    rows = []
    for number, (words, path) in PROMISES.items():
        tests = ", ".join(f"[{Path(f).stem}](../{f})" for f in proved.get(number, [])) or "*pending*"
        where = f"[{path}](../conduit_tasks/{path})" if path else "*pending*"
        rows.append(f"| {number} | {words} | {where} | {tests} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    """See the module."""
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
