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
    lines: dict[str, list[str]] = {m.name: [*_head(m)] for m in metrics}
    for sample in read():
        lines[sample.metric.name] += _lines(sample)
    return "".join(line for each in lines.values() for line in each).encode()


def _head(metric: Metric) -> tuple[str, str]:
    meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.prometheus} {meaning}\n", f"# TYPE {metric.prometheus} {metric.kind}\n"


def _lines(sample: Sample) -> Iterator[str]:
    name, value = sample.metric.prometheus, sample.value
    pairs = [f'{label}="{sample.labels[at].translate(_ESCAPED)}"' for label, at in _order(sample.metric.labels)]
    labels = f"{{{','.join(pairs)}}}" if pairs else ""
    if not isinstance(value, Histogram):
        yield f"{name}{labels} {_number(value)}\n"
        return
    # `le` stands in the order of names, as every label.
    before = sum(label < "le" for label in sample.metric.labels)
    head = "".join(f"{pair}," for pair in pairs[:before])
    tail = "".join(f",{pair}" for pair in pairs[before:])
    total = 0
    for le, total in zip(_LES, accumulate(value.counts)):
        yield f"{name}_bucket{{{head}{le}{tail}}} {_number(total)}\n"
    yield f"{name}_count{labels} {_number(total)}\n"
    yield f"{name}_sum{labels} {_number(value.sum)}\n"


@lru_cache
def _order(labels: tuple[str, ...]) -> list[tuple[str, int]]:
    """Returns the labels by name, each with its place."""
    return sorted((label, at) for at, label in enumerate(labels))


@lru_cache(4_096)
def _number(value: float) -> str:
    return floatToGoString(value)


@contextmanager
def serving(metrics: Sequence[Metric], read: Read, port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """Answers scrapes on this port for the block. Raises OSError if the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            body = exposition(metrics, read)
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
