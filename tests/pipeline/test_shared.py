"""What must be each connector's own, and two connectors would use together."""

from __future__ import annotations

import os

import pytest

from conduit_tasks.pipeline.load import load_folder
from tests.pipeline.conftest import Files

KAFKA = "{servers: 'k1:9092,k2:9092', topics: t}"
REDIS = "{url: 'redis://user:s3cret@r:6379', streams: s}"
POSTGRES = "{url: 'postgresql://user:s3cret@db/app', tables: t, logrepl.slotName: slot}"


def source(id: str, plugin: str, settings: str) -> str:
    return f"  - {{id: {id}, type: source, plugin: {plugin}, settings: {settings}}}\n"


def destination(id: str, plugin: str, settings: str) -> str:
    return source(id, plugin, settings).replace("source", "destination")


def write(files: Files, id: str, connectors: str) -> None:
    more = destination("to", "log", "{}") + source("from", "file", "{path: x}")
    text = f'version: "2.2"\npipelines:\n- id: {id}\n  connectors:\n{connectors}{more}'
    files.write(text, f"{id}.yaml")


def codes(files: Files, *, plugins: bool) -> list[tuple[str, str]]:
    found = load_folder(files.folder, plugins=plugins, env={})
    assert len(found.pipelines) + len({f.pipeline for f in found.errors}) == 2
    return [(os.path.basename(f.file), f.code) for f in found.errors]


@pytest.mark.parametrize("plugins", [True, False])
@pytest.mark.parametrize(
    ("kind", "plugin", "settings", "other"),
    [
        (source, "kafka", KAFKA, "{servers: 'k2:9092', topics: other}"),
        (source, "redis", REDIS, "{url: 'redis://r:6379', streams: 's,t'}"),
        (destination, "kafka", "{servers: k1, topic: t}", "{servers: k1, topic: u}"),
    ],
)
def test_ids_that_a_dot_makes_equal_do_not_share_a_group_silently(
    files: Files, kind: object, plugin: str, settings: str, other: str, *, plugins: bool
) -> None:
    assert callable(kind)
    write(files, "a.b", kind("c", plugin, settings))
    write(files, "a", kind("b.c", plugin, other))
    found = load_folder(files.folder, plugins=plugins, env={})
    assert found.pipelines == []
    assert {(os.path.basename(f.file), f.line, f.code) for f in found.errors} == {
        ("a.b.yaml", 3, "E108"),
        ("a.yaml", 3, "E108"),
    }
    said = next(f for f in found.errors if f.pipeline == "a")
    assert "b.c of a would share the" in said.message
    assert "a.b.c" in said.message
    assert "with c of a.b" in said.message
    assert "id" in said.hint
    assert "s3cret" not in said.message


@pytest.mark.parametrize("plugins", [True, False])
@pytest.mark.parametrize(
    ("plugin", "settings", "other"),
    [
        ("kafka", KAFKA, "{servers: 'k3:9092', topics: t}"),
        ("kafka", "{servers: k, topics: t, groupID: g}", "{servers: k, topics: t, groupID: g}"),
        ("redis", REDIS, "{url: 'redis://r:6379', streams: t}"),
        ("redis", REDIS, "{url: 'redis://r:6379', streams: s, group: own}"),
        ("file", "{path: in}", "{path: in}"),
    ],
)
def test_those_of_different_servers_streams_or_groups_are_left_alone(
    files: Files, plugin: str, settings: str, other: str, *, plugins: bool
) -> None:
    write(files, "a.b", source("c", plugin, settings))
    write(files, "a", source("b.c", plugin, other))
    assert codes(files, plugins=plugins) == []


def test_a_redis_group_that_both_name_is_shared_by_two_consumers_of_different_names_only(files: Files) -> None:
    settings = "{url: 'redis://r:6379', streams: s, group: own}"
    write(files, "a.b", source("c", "redis", settings))
    write(files, "a", source("b.c", "redis", settings))
    assert [code for _, code in codes(files, plugins=True)] == ["E108", "E108"]
    write(files, "a", source("d", "redis", settings))
    assert codes(files, plugins=True) == []


def test_a_replication_slot_has_one_reader(files: Files) -> None:
    """Given two pipelines that read changes of one database by one slot, each of whose acks takes them from the other,
    then that is refused; not where they read rows, or another slot."""
    write(files, "a", source("in", "postgres", POSTGRES))
    write(files, "b", source("in", "postgres", POSTGRES.replace("user:s3cret", "other")))
    assert [code for _, code in codes(files, plugins=True)] == ["E108", "E108"]
    for other in (
        POSTGRES.replace("slot}", "own}"),
        POSTGRES.replace("tables: t", "tables: t, mode: incremental, column: id"),
    ):
        write(files, "b", source("in", "postgres", other))
        assert codes(files, plugins=True) == []


def test_connectors_are_not_loaded_to_see_that_names_differ(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.connectors import registry

    write(files, "a.b", source("c", "kafka", KAFKA))
    write(files, "a", source("b.d", "kafka", KAFKA))

    def never(plugin: str) -> None:
        raise AssertionError(f"{plugin} is loaded")

    for name in ("source_class", "destination_class"):
        monkeypatch.setattr(registry, name, never)
    assert codes(files, plugins=False) == []
