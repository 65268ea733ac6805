"""Records as people look at them: masked and cut."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_tasks.record.shown import ENTRIES, LETTERS, Shown
from conduit_tasks.secret_names import FIELD


def record(after: Any = None, **more: Any) -> dict[str, Any]:
    parts = {"position": "MQ==", "operation": "create", "metadata": {}, "key": None}
    return {**parts, "payload": {"before": more.pop("before", None), "after": after}, **more}


def shown(after: Any, *mask: str, **more: Any) -> Any:
    return Shown(mask).record(record(after, **more))["payload"]["after"]


@pytest.mark.parametrize(
    "name",
    [
        *("password", "userPassword", "passwd", "DB_PASS", "pwd", "secret", "client_secret", "token", "accessToken"),
        *("apiKey", "api_key", "private-key", "accesskey", "credentials", "Authorization", "pin", "card.cvv"),
    ],
)
def test_names_that_say_that_they_are_secret_are_known(name: str) -> None:
    assert FIELD.search(name)


@pytest.mark.parametrize("name", ["passenger", "passengers", "key", "url", "author", "spinning", "compass", "carrier"])
def test_names_of_other_things_are_not(name: str) -> None:
    assert not FIELD.search(name)


def test_secret_fields_are_masked_at_any_depth_and_absent_ones_stay_absent() -> None:
    given = {"a": [{"token": "t0ken"}], "password": None, "secret": {"x": [1, "deep"]}, "n": 1}
    assert shown(given) == {"a": [{"token": "***"}], "password": None, "secret": "***", "n": 1}
    assert given["secret"] == {"x": [1, "deep"]}, "the record itself is not changed"
    assert Shown().record(record(metadata={"authorization": "Basic x", "k": "v"}))["metadata"] == {
        "authorization": "***",
        "k": "v",
    }


def test_a_pair_of_a_secret_name_and_its_value_is_masked() -> None:
    given = {"headers": [{"name": "Authorization", "value": "Basic eDp5"}, {"Name": "Accept", "Value": "text/plain"}]}
    masked = [{"name": "Authorization", "value": "***"}, {"Name": "Accept", "Value": "text/plain"}]
    assert shown({**given, "copy": "was Basic eDp5"}) == {"headers": masked, "copy": "was ***"}
    assert shown({"key": "api-key", "values": ["first-key"], "n": 1}) == {"key": "api-key", "values": "***", "n": 1}
    assert shown({"name": "password", "value": "hunter22"}) == {"name": "password", "value": "***"}
    for other in ({"k": "password", "v": "hunter22"}, {"pair": ["password", "hunter22"]}):
        assert shown(other) == other, "docs/records.md says that these are not found"
    assert shown({"name": "the secret garden", "author": "F. H. B."})["name"] == "the secret garden"


def test_fields_of_the_file_are_masked_through_lists_in_raw_json_and_as_a_whole() -> None:
    assert shown({"a": [{"b": "1111"}, {"c": 2}]}, ".Payload.After.a.b") == {"a": [{"b": "***"}, {"c": 2}]}
    assert shown('{"card": 12345, "n": 1.50}', ".Payload.After.card") == '{"card":"***","n":1.5}'
    assert shown('{"n": 1.50}', ".Payload.After.card") == '{"n": 1.50}', "what has nothing to mask stays as it is"
    assert shown("card 12345", ".Payload.After.card") == "***", "raw data has no fields to tell apart"
    assert shown("card 12345") == "card 12345"
    assert shown({"a": 1}, ".Payload.After") == "***"
    assert shown({"a": 1}, ".Payload") == "***"
    whole = Shown((".Key", '.Metadata["x.y"]', ".Position")).record(record(key={"k": 1}, metadata={"x.y": "zzzz"}))
    assert (whole["key"], whole["metadata"], whole["position"]) == ("***", {"x.y": "***"}, "***")


def test_a_masked_value_is_masked_wherever_else_it_is_found() -> None:
    of = Shown((".Payload.After.card",))
    found = of.record(record({"z": "it is 41111111", "n": 41111111, "card": "41111111"}, before={"c": "41111111"}))
    assert found["payload"] == {
        "before": {"c": "***"},
        "after": {"z": "it is ***", "n": "***", "card": "***"},
    }
    assert of.text("cannot convert '41111111'") == "cannot convert '***'"
    # But short ones are in everything
    assert shown({"pin": "12", "n": "1234"}) == {"pin": "***", "n": "1234"}


def test_long_texts_lists_and_deep_values_are_cut_and_that_is_said() -> None:
    of = Shown()
    assert of.record(record({"a": "x" * LETTERS}))["payload"]["after"]["a"] == "x" * LETTERS
    assert not of.cut
    cut = of.record(record({"a": "x" * (LETTERS + 1), "b": list(range(ENTRIES + 1))}))["payload"]["after"]
    assert f"{LETTERS + 1:,} characters in all" in cut["a"]
    assert (len(cut["b"]), cut["b"][-1]) == (ENTRIES + 1, "… 201 in all")
    assert of.cut
    deep: Any = 1
    for _ in range(100):
        deep = {"d": deep}
    assert "…" in str(shown(deep))
    assert shown({str(n): n for n in range(ENTRIES + 1)})["…"] == "201 in all"


def test_of_many_large_records_the_last_are_left_out() -> None:
    of = Shown(most=5_000)
    assert len(of.records(record({"a": "x" * 1_000}) for _ in range(100))) == 5
    assert of.cut


def test_a_key_given_twice_in_raw_json_shows_neither_value() -> None:
    assert shown('{"password": "first one", "password": ""}') == '{"password":""}'
    assert shown('{"a": {"token": "first one", "token": null}}') == '{"a":{"token":null}}'
    assert shown('{"a": 1.50, "b": [{"a": 2}]}') == '{"a": 1.50, "b": [{"a": 2}]}'
