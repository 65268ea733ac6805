"""A question to the process that tries a record: the record or where it lies, where it enters, a changed file, and what
it may reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WRITTEN = 16 << 20
"""Bytes that the process may answer, and half of what it may write into any file."""


@dataclass(frozen=True)
class Ask:
    """One question, of JSON types.

    `record`: OpenCDC JSON; or `letter`: [id], or [destination, epoch, micro-batch, seq, ord] of a dead letter; or
    `place`: of a record in the spool (`peek.Place`). `node`: at which it enters; "": the only source, where the letter
    failed, or what follows the place. `last`: nothing is tried, but the last records of `node` are asked for, each with
    what its processors make of it. `text`: of a file that is not in force (None:
    the one in force), which findings call `file`. `own`: whether whoever asks may run any code as this process: for
    others a changed text gets no variable of the environment, and runs only what depends on the record alone or is in
    the file in force as well. `calls`: whether processors may reach the network. `frames`: whether Spark is started.
    """

    pipeline: str
    record: str | None = None
    letter: list[Any] | None = None
    place: str | None = None
    last: int | None = None
    node: str = ""
    text: str | None = None
    file: str = "the file"
    own: bool = False
    calls: bool = False
    frames: bool = False
