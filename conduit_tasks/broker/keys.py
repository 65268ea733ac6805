"""Every Redis key of a pipeline: name, type, meaning, lifetime.

All share the hash tag `{conduit:<pipeline>}`, so that on a Redis Cluster they live in one slot and one script may touch
them. `|` separates two ids in a key: ids hold none (the file's rule: `[A-Za-z0-9_.:-]`).
"""

from __future__ import annotations

SCHEMA_PATTERN = "{conduit:*}:schema"


class Keys:
    """Names of one pipeline's keys. "Pipeline" as a lifetime means: until the pipeline's state is removed."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline_id = pipeline
        self._tag = f"{{conduit:{pipeline}}}:"

    @property
    def prefix(self) -> str:
        return self._tag

    @property
    def schema(self) -> str:
        """string: version of this layout. Pipeline."""
        return self._tag + "schema"

    @property
    def pipeline(self) -> str:
        """hash: status, error, error_at, deadline, forced, resume, looked:<source>; numbers last, unsealed, sealed,
        slim, collected, collecting, held, held_from; created, drained_at (microseconds); drained_to; sealing, a key
        that was made up. Pipeline."""
        return self._tag + "pipeline"

    @property
    def version(self) -> str:
        """hash: digest, topology, destinations, since, by of the pipeline file in force. Pipeline."""
        return self._tag + "version"

    @property
    def left(self) -> str:
        """hash: destination that has left the file → time it left. Each until it is back, renamed or forgotten."""
        return self._tag + "left"

    @property
    def sources(self) -> str:
        """set: registered source ids. Pipeline."""
        return self._tag + "sources"

    @property
    def destinations(self) -> str:
        """set: registered destination ids. Pipeline."""
        return self._tag + "destinations"

    @property
    def totals(self) -> str:
        """hash: read, bytes, filtered, nacked, and `<node>/read`, `/filtered`, `/nacked`, over everything sealed.
        Pipeline."""
        return self._tag + "totals"

    @property
    def figures(self) -> str:
        """hash: `<node>|<what>|<upper bound, or ms>` → count, or sum: histograms of durations. Pipeline."""
        return self._tag + "figures"

    def series(self, destination: str) -> str:
        """hash: `|<width>|<stretch>` → figures of a destination in buckets of time (see `series.py`); ("") those of the
        pipeline, and with a node in front of the first `|` those of a node before the fan-out. Each field until a later
        stretch of time takes it."""
        return f"{self._tag}series:{destination}"

    @property
    def alerts(self) -> str:
        """hash: `<subject>|<who>` → 1 while the last alert sent says that it is late (a destination, or a rule of one);
        claims of the runs that are sending one. Pipeline."""
        return self._tag + "alerts"

    @property
    def issues(self) -> str:
        """hash: issue → what somebody decided about it. Each until it is taken back."""
        return self._tag + "issues"

    @property
    def failing(self) -> str:
        """hash: issue → failed tasks of one cause: first and last seen, count, a sample; `ok:<node>` → when a node with
        issues last succeeded. Each for 30 days after it was last seen, 200 at most."""
        return self._tag + "failing"

    @property
    def announced(self) -> str:
        """hash: `<issue>|<who>` → the opening of an issue that was told last; claims of those that are telling one;
        mark of what the last look at the dead letters saw. Each until its issue is gone."""
        return self._tag + "announced"

    @property
    def under_way(self) -> str:
        """hash: run, began and since (microseconds), records, base, moved, again of the run under way; `node:<node>` →
        time until which it is at work, `for:<node>` → how far ahead that may lie at most (both microseconds),
        `ready:<node>` → 1, `left_out:<source>` → why; lasts, over and ended of the run itself. Until the next run."""
        return self._tag + "under-way"

    @property
    def before(self) -> str:
        """hash: the fields of `under_way`, for the run that the one under way takes over from. Until the next run."""
        return self._tag + "under-way-before"

    @property
    def bell(self) -> str:
        """stream: one entry, replaced at every change that a node may wait for. Pipeline."""
        return self._tag + "bell"

    def micro_batch(self, number: int) -> str:
        """hash: state, slices and stages of one micro-batch. Until collected."""
        return f"{self._tag}micro-batch:{number}"

    def planned(self, source: str) -> str:
        """hash: part → token (JSON) up to which the source is planned. Pipeline."""
        return f"{self._tag}planned:{source}"

    def acked(self, source: str) -> str:
        """hash: part → token (JSON) that the source was told last. Pipeline."""
        return f"{self._tag}acked:{source}"

    def gone(self, source: str) -> str:
        """hash: part that is gone → time since which it is. Each until it is there again, or forgotten."""
        return f"{self._tag}gone:{source}"

    def ack(self, source: str) -> str:
        """hash: m (acked up to this micro-batch), from and to of an intent under way. Pipeline."""
        return f"{self._tag}ack:{source}"

    def intent(self, source: str) -> str:
        """hash: part → token (JSON) that the source is about to be told. Until the ack is committed."""
        return f"{self._tag}intent:{source}"

    def index(self, source: str) -> str:
        """hash: partition → next index. Pipeline."""
        return f"{self._tag}index:{source}"

    def lease(self, node: str) -> str:
        """hash: token, owner, until, ttl, nonce, attempts; failures, failure, error, error_at, retry_at of a node that
        fails. Pipeline (tokens only grow)."""
        return f"{self._tag}lease:{node}"

    def destination(self, destination: str) -> str:
        """hash: cursor, ranges, divided, shard:<n>, group, epoch, state, words, begun, status, error, forced, joined,
        replayed, told, counters of one destination; ("") epoch of redrives before the fan-out. Pipeline."""
        return f"{self._tag}destination:{destination}"

    def numbers(self, destination: str, *, redelivery: bool = False) -> str:
        """hash: epoch, m … and `lane:<lane>` → last numbers of the records sent to a destination; redeliveries have
        their own. Pipeline; lanes that no source knows any more go with their epoch."""
        return f"{self._tag}numbers:{destination}{'|redelivery' if redelivery else ''}"

    def window(self, destination: str) -> str:
        """hash: nack window of a destination, or ("") of the nodes before the fan-out. Pipeline."""
        return f"{self._tag}window:{destination}"

    def dead(self, destination: str) -> str:
        """hash: index of a destination's dead letters, or ("") of those before the fan-out. Each until redriven."""
        return f"{self._tag}dead:{destination}"

    def run(self, destination: str, run: str) -> str:
        """hash: micro-batch → ranges that one run confirmed; its counters. Expires after the retention."""
        return f"{self._tag}run:{destination}|{run}"

    def runs(self, destination: str) -> str:
        """hash: run whose task succeeded after it delivered something → time of its end (milliseconds); the newest
        runs. Each until it is in the spool."""
        return f"{self._tag}runs:{destination}"

    def finished(self, destination: str, run: str) -> str:
        """string: the same for one run, as earlier versions kept it. Seven times the retention."""
        return f"{self._tag}finished:{destination}|{run}"

    def redo(self, destination: str) -> str:
        """hash: epoch, run, at, micro-batch → ranges still to redeliver, filling while not all are in. Until nothing is
        left, or it is given up."""
        return f"{self._tag}redo:{destination}"

    def ingest(self, source: str) -> str:
        """stream: chunks of events a gateway source took in, in order. Each until acked."""
        return f"{self._tag}ingest:{source}"

    def ingest_sizes(self, source: str) -> str:
        """stream: the same ids with the number of events and bytes of each chunk, so that planning reads no chunk. Each
        until acked; it has none of the chunks that earlier versions stored."""
        return f"{self._tag}ingest-sizes:{source}"

    def ingested(self, source: str) -> str:
        """hash: base, last, bytes, acked, acked_bytes, journal, holes of a gateway source. Pipeline."""
        return f"{self._tag}ingested:{source}"

    def ingest_index(self, source: str) -> str:
        """hash: `<CloudEvents source> <key>` → state of its pipe's receiver. `pipe.forget` each."""
        return f"{self._tag}ingest-index:{source}"

    def ingest_lanes(self, source: str) -> str:
        """sorted set: the same lanes, by the second in which each was last used."""
        return f"{self._tag}ingest-lanes:{source}"

    def ingest_seen(self, source: str) -> str:
        """sorted set: marks of signed requests, by the second in which each is forgotten. Twice `verify.tolerance`
        after the last."""
        return f"{self._tag}ingest-seen:{source}"

    def ingest_group(self, source: str, gateway: str) -> str:
        """string: the last group one gateway process stored, and its answer. An hour."""
        return f"{self._tag}ingest-group:{source}|{gateway}"

    def redrive(self, destination: str) -> str:
        """hash: token, nonce, epoch, by, step; dead letter → claimed, or its outcome. Until the redrive ends."""
        return f"{self._tag}redrive:{destination}"

    def parked(self, destination: str) -> str:
        """hash: hash of a parked key → position up to which it is settled. Each until the key is unparked."""
        return f"{self._tag}parked:{destination}"

    def replay(self, destination: str, run: str) -> str:
        """hash: progress of a replay at a destination. Seven times the retention."""
        return f"{self._tag}replay:{destination}|{run}"

    def turns(self, destination: str) -> str:
        """hash: run → start of its interval, and whether it has the turn, of replays under way. Each until it ends or
        lapses."""
        return f"{self._tag}turns:{destination}"
