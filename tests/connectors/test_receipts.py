"""Receipts of a queue's messages that are collected, and receipts that cannot be read at the moment (SEMANTICS T2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.redis.connector import RedisSource
from conduit_tasks.connectors.sqs.connector import SqsSource
from conduit_tasks.errors import SpoolError, SpoolGone
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.spool.spool import Spool

Known = Callable[[str], list[Any]]
"""What a source makes of the receipts of this name."""


def sqs(kept: Kept) -> Known:
    source = SqsSource({"queue": "q", "region": "eu-central-1"})
    source.receipts = kept

    def known(name: str) -> list[Any]:
        source.unsettled = [{"0": {"receipts": name, "ids": name}}]
        return [*source._ids(), *source._kept({"receipts": name})]

    return known


def redis(kept: Kept) -> Known:
    source = RedisSource({"url": "redis://127.0.0.1:1", "streams": "s", "group": "g"})
    source.receipts = kept

    def known(name: str) -> list[Any]:
        source.unsettled = [{"s": {"last": "0-0", "receipts": name}}]
        return list(source._staged("s"))

    return known


@pytest.mark.proves("T2")
@pytest.mark.parametrize("source", [sqs, redis])
def test_receipts_that_cannot_be_read_now_are_not_taken_for_collected_ones(
    tmp_path: Path, source: Callable[[Kept], Known]
) -> None:
    known = source(Kept(Spool(str(tmp_path)), "a"))
    # Given receipts that are collected: there is nothing left of them to know
    assert known("a/collected") == []
    # When others are there and cannot be read, then nothing is concluded from them
    (tmp_path / "a/unreadable").mkdir(parents=True)
    with pytest.raises(SpoolError, match="a/unreadable") as raised:
        known("a/unreadable")
    assert not isinstance(raised.value, SpoolGone)
