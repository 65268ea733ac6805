"""Samples in the text format of Prometheus, and a server that answers scrapes with them.

The text is written here, as the library takes 25 µs a line: 4.5 s for 1,000 pipelines, half of the time that Prometheus
waits (docs/benchmarks.md, `many`). It equals the library's, which the tests compare.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.utils import floatToGoString

from conduit_tasks.metrics.definitions import Metric, Sample
from conduit_tasks.metrics.histogram import BOUNDS, Histogram

Read = Callable[[], Iterable[Sample]]
"""Function that reads the present figures."""

PATIENCE = 30.0
"""Seconds after which a client that sends or takes nothing is given up."""

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_LES = [f'le="{text}"' for text in (*(f"{float(bound):g}" for bound in BOUNDS), "+Inf")]


def exposition(metrics: Sequence[Metric], read: Read) -> bytes:
    """Returns the text that Prometheus scrapes; `metrics` are listed even if they have no figure yet."""
    texts: dict[str, list[str]] = {m.name: [_head(m)] for m in metrics}
    for sample in read():
        texts[sample.metric.name].append(_text(sample))
    return "".join([text for each in texts.values() for text in each]).encode()


def _head(metric: Metric) -> str:
    meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.prometheus} {meaning}\n# TYPE {metric.prometheus} {metric.kind}\n"


def _text(sample: Sample) -> str:
    """Returns the lines of one figure."""
    name, value, labels = sample.metric.prometheus, sample.value, sample.labels
    pairs = [f'{label}="{_escaped(labels[at])}"' for label, at in _order(sample.metric.labels)]
    shown = f"{{{','.join(pairs)}}}" if pairs else ""
    if not isinstance(value, Histogram):
        return f"{name}{shown} {_number(value)}\n"
    # `le` stands in the order of names, as every label.
    before = sum(label < "le" for label in sample.metric.labels)
    head = f"{name}_bucket{{{''.join([f'{pair},' for pair in pairs[:before]])}"
    tail = f"{''.join([f',{pair}' for pair in pairs[before:]])}}} "
    totals = list(accumulate(value.counts))
    buckets = "".join([f"{head}{le}{tail}{_number(total)}\n" for le, total in zip(_LES, totals)])
    count = _number(totals[-1] if totals else 0)
    return f"{buckets}{name}_count{shown} {count}\n{name}_sum{shown} {_number(value.sum)}\n"


@lru_cache(4_096)
def _escaped(label: str) -> str:
    return label.translate(_ESCAPED)


@lru_cache
def _order(labels: tuple[str, ...]) -> list[tuple[str, int]]:
    """Returns the labels by name, each with its place."""
    return sorted((label, at) for at, label in enumerate(labels))


@lru_cache(4_096)
def _number(value: float) -> str:
    return floatToGoString(value)


@contextmanager
def serving(text: Callable[[], bytes], port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """Answers scrapes on this port with the text (`exposition`), made for each, for the block. Raises OSError if the
    port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                body = gzip.compress(body, 1)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
