"""Options that have no effect at destinations that write in batches, or that one of them cannot keep."""

from __future__ import annotations

import pytest

from tests.pipeline.conftest import Files


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("schema: evolve", []),
        ("schema: evolve, rewrite-up-to: 5GiB", []),
        ("schema: merge", []),
        ("schema: evolve, rewrite-up-to: 0", ["no column is widened"]),
        ("schema: evolve, rewrite-up-to: 0MB", ["no column is widened"]),
        ("schema: merge, rewrite-up-to: 5GiB", ["what schema: evolve does"]),
    ],
)
def test_delta_says_where_it_widens_no_column(files: Files, settings: str, said: list[str]) -> None:
    text = files.with_pipeline().replace(
        "plugin: file\n        settings: {path: out.txt}",
        f"plugin: delta\n        settings: {{path: t, {settings}}}",
    )
    found = files.load(text, plugins=True).findings
    assert [f.code for f in found] == ["W202"] * len(said)
    assert all(each in f.message and "schema: " in f.hint for f, each in zip(found, said, strict=True))


BATCHES = "writes batches of all records in their order"
AT_A_TIME = "writes many records at a time"


@pytest.mark.parametrize(
    ("plugin", "settings", "delivery", "says"),
    [
        ("file", "{path: o}", "order-by: key", [BATCHES]),
        ("file", "{path: o}", "order-by: none, max-unconfirmed: 8", [BATCHES, AT_A_TIME]),
        ("file", "{path: o}", "order-by: partition", []),
        ("file", "{path: o}", "max-unconfirmed: 1", []),
        ("file", "{path: o}", "order-by: key, park-keys: true", []),
        ("file", "{path: o}", "order-by: key, parallelism: auto", [BATCHES, "one task delivers"]),
        ("file", "{path: o, format: parquet}", "order-by: key, parallelism: 4", []),
        ("file", "{path: o, format: parquet}", "order-by: key, max-unconfirmed: 8, parallelism: 4", [AT_A_TIME]),
        ("delta", "{path: t}", "order-by: key, pipe: monotonic", []),
        ("delta", "{path: t}", "order-by: key, guarantee: effectively-once", []),
        ("delta", "{path: t}", "order-by: key", [BATCHES]),
        ("http", "{url: 'http://localhost/'}", "order-by: none, max-unconfirmed: 8", []),
    ],
)
def test_an_order_that_a_destination_of_batches_does_not_ask_for_is_named(
    files: Files, plugin: str, settings: str, delivery: str, says: list[str]
) -> None:
    text = files.with_pipeline(destination=f"delivery: {{{delivery}}}").replace(
        "plugin: file\n        settings: {path: out.txt}", f"plugin: {plugin}\n        settings: {settings}"
    )
    found = files.load(text, plugins=True).findings
    assert [f.code for f in found] == ["W202"] * len(says)
    for each, said in zip(found, says, strict=True):
        assert said in each.message
