import importlib
import inspect

import jsonschema
import pytest
from ruamel.yaml import YAML

from conduit_tasks.pipeline import json_schema as made
from conduit_tasks.pipeline.json_schema import json_schema
from tests.pipeline.conftest import FILES


def documents(name: str) -> list[object]:
    return list(YAML(typ="safe", pure=True).load_all((FILES / name).read_text()))


@pytest.mark.parametrize("name", ["design.yaml"])
def test_good_files_satisfy_the_schema(name: str) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for document in documents(name):
        assert [e.message for e in validator.iter_errors(document)] == []


def test_the_schema_refuses_what_validation_refuses() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    document = {"version": "2.2", "pipelines": [{"id": "a b", "statuss": "running"}]}
    messages = " ".join(e.message for e in validator.iter_errors(document))
    assert "statuss" in messages
    assert "a b" in messages


def test_keys_are_explained_to_the_editor() -> None:
    delivery = json_schema()["$defs"]["DeliveryKeys"]["properties"]
    assert "in flight" in delivery["max-unconfirmed"]["description"]


def test_a_schema_is_given_where_there_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", missing)
    try:
        importlib.reload(made)
        assert "pipelines" in made.json_schema()["properties"]
    finally:
        monkeypatch.undo()
        importlib.reload(made)
