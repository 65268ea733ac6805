"""The processors that ask a model, against a server that speaks the providers' APIs."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.registry import build
from tests.processors.answering import Asked, Reply, Server, answering
from tests.processors.conftest import one, record, run, step


def provider(asked: Asked) -> Reply:
    """As Cohere, OpenAI and Ollama answer."""
    if asked.path != "/api/generate" and asked.headers.get("authorization") != "Bearer secret":
        return 401, {"error": {"message": "no such key"}}
    question = asked.json
    match asked.path:
        case "/v2/chat":
            text = question["messages"][0]["content"].upper()
            return 200, {
                "id": "1",
                "finish_reason": "COMPLETE",
                "message": {"role": "assistant", "content": [{"type": "text", "text": text}]},
            }
        case "/v2/embed":
            if any("bad" in text for text in question["texts"]):
                return 400, {"message": "invalid text"}
            return 200, {"id": "1", "embeddings": {"float": [[float(len(text)), 0.5] for text in question["texts"]]}}
        case "/v2/rerank":
            ranked = sorted(enumerate(question["documents"]), key=lambda each: -len(each[1]))
            return 200, {"id": "1", "results": [{"index": i, "relevance_score": len(text) / 100} for i, text in ranked]}
        case "/embeddings":
            floats: Any = [0.25, -1.5]
            if question.get("encoding_format") == "base64":
                floats = base64.b64encode(np.array(floats, "<f4").tobytes()).decode()
            return 200, {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": floats}]}
        case "/chat/completions":
            said = f"{question['messages'][0]['content']}: {question['messages'][1]['content']}"
            return 200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": said}}]}
        case "/api/generate":
            data = json.loads(question["prompt"].rpartition("Record: ")[2])["after"]
            return 200, {"model": question["model"], "response": json.dumps({**data, "seen": True}), "done": True}
    return 404, {"error": "no such path"}


@pytest.fixture
def server():
    with answering(provider) as running:
        yield running


def ask(server: Server, plugin: str, **settings: str):
    key = {"openai": "api_key", "cohere": "apiKey"}.get(plugin.split(".", maxsplit=1)[0])
    # Conduit writes these names with underscores, which `step` would turn.
    made = step(plugin, None, plugin)
    object.__setattr__(made, "settings", {"url": server.url, **({key: "secret"} if key else {}), **settings})
    return made


def test_cohere_command_answers_into_the_record(server: Server) -> None:
    out = one(record(b"hello"), ask(server, "cohere.command", **{"response.body": ".Payload.Before"}))
    assert (out.before, out.after) == (b"HELLO", b"hello")
    assert server.asked[0].json == {
        "model": "command",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": False,
    }
    assert one(record({"a": "b"}), ask(server, "cohere.command")).after == b'{"A":"B"}'


def test_cohere_embeds_many_texts_in_one_request_and_a_bad_one_fails_alone(server: Server) -> None:
    chain = Chain([ask(server, "cohere.embed", maxTextsPerRequest="3", inputField=".Key")])
    keys = [b"a", b"bb", b"ccc", b"dddd", b"bad", b"f"]
    results = chain.run([record({"x": 1}, key=key) for key in keys])
    chain.close()
    assert [r.error is None for r in results] == [True] * 4 + [False, True]
    assert "the answer is 400: invalid text" in (results[4].error or "")
    # Two groups of three, the second then one by one
    assert [len(asked.json["texts"]) for asked in server.asked] == [3, 3, 1, 1, 1]
    after: Any = results[3].records[0].after
    compressed = base64.b64decode(after["embedding"])
    assert pa.CompressedInputStream(pa.BufferReader(compressed), "zstd").read() == b"[4.0,0.5]"
    assert results[3].records[0].metadata["cohere.embed.model"] == "embed-english-v2.0"
    raw = one(record(b"text"), ask(server, "cohere.embed", model="embed-v4.0", inputType="search_document")).after
    assert pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read() == b"[4.0,0.5]"
    assert server.asked[-1].json["input_type"] == "search_document"


def test_cohere_rerank_gives_every_record_its_score_and_keeps_the_order(server: Server) -> None:
    chain = Chain([ask(server, "cohere.rerank", query="which?")])
    results = chain.run([record(text) for text in (b"a", b"ccc", b"bb")])
    chain.close()
    assert [orjson.loads(r.records[0].after) for r in results] == [  # type: ignore[arg-type]
        {"document": {"text": text}, "index": i, "relevance_score": score}
        for i, (text, score) in enumerate([("a", 0.01), ("ccc", 0.03), ("bb", 0.02)])
    ]
    assert server.asked[0].json["query"] == "which?"


def test_openai_embeddings_replace_a_field(server: Server) -> None:
    out = one(
        record({"t": "text", "x": 1}),
        ask(server, "openai.embeddings", model="m", field=".Payload.After.t", dimensions="2"),
    )
    assert out.after == {"t": "[0.25,-1.5]", "x": 1}
    assert server.asked[0].json == {"model": "m", "input": "text", "dimensions": 2}
    assert (
        one(record({"a": 1}), ask(server, "openai.embeddings", model="m", encoding_format="base64")).after
        == b"[0.25,-1.5]"
    )
    assert server.asked[1].json["input"] == '{"a":1}'


def test_openai_textgen_sends_what_is_set_by_its_type(server: Server) -> None:
    settings = {
        "temperature": "0.5",
        "max_tokens": "9",
        "stop": "a, b",
        "log_probs": "true",
        "logit_bias.50256": "-100",
        "metadata.team": "data",
    }
    out = one(record(b"hello"), ask(server, "openai.textgen", model="m", developer_message="say", **settings))
    assert out.after == b"say: hello"
    asked = server.asked[0].json
    assert {k: v for k, v in asked.items() if k not in ("model", "messages")} == {
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["a", "b"],
        "logprobs": True,
        "logit_bias": {"50256": -100},
        "metadata": {"team": "data"},
    }
    assert [m["role"] for m in asked["messages"]] == ["developer", "user"]


def test_ollama_changes_the_data_and_must_answer_in_json(server: Server) -> None:
    assert one(record({"a": 1}), ask(server, "ollama", prompt="mark it")).after == {"a": 1, "seen": True}
    assert "mark it" in server.asked[0].json["prompt"]
    for said, why in (("sure!", "did not answer in JSON"), ("[1]", "no JSON object")):
        server.reply = lambda asked, said=said: (200, {"response": said, "done": True})
        assert why in (run(record({}), ask(server, "ollama")).error or "")
    server.reply = lambda asked: (200, {"response": "{}", "done": False})
    assert "not as documented" in (run(record({}), ask(server, "ollama")).error or "")


CASES = [
    ("cohere.command", {}, 503),
    ("cohere.embed", {}, 500),
    ("cohere.rerank", {"query": "q"}, 504),
    ("ollama", {}, 500),
    ("openai.embeddings", {"model": "m"}, 429),
    ("openai.textgen", {"model": "m", "developer_message": "d"}, 502),
]


@pytest.mark.parametrize(("plugin", "settings", "status"), CASES)
def test_what_may_recover_is_repeated_and_the_rest_is_the_records_error(
    plugin: str, settings: dict[str, str], status: int, server: Server
) -> None:
    quick = (
        {"max_retries": "1", "initial_backoff": "1", "max_backoff": "2"}
        if plugin.startswith("openai")
        else {"backoffRetry.count": "1", "backoffRetry.min": "1ms"}
    )
    server.reply = lambda asked: (status, {"error": {"message": "busy"}}) if len(server.asked) == 1 else provider(asked)
    assert run(record({"a": 1}), ask(server, plugin, **settings, **quick)).error is None
    assert len(server.asked) == 2
    server.reply = lambda asked: (400, {"error": {"message": "bad request"}})
    error = run(record({"a": 1}), ask(server, plugin, **settings, **quick)).error or ""
    assert "the answer is 400: bad request" in error
    assert "secret" not in error
    assert len(server.asked) == 3
    server.reply = lambda asked: (200, {"something": "else"})
    assert "not as documented" in (run(record({"a": 1}), ask(server, plugin, **settings)).error or "")


@pytest.mark.parametrize(
    "environment",
    [
        {"OPENAI_API_KEY": "secret"},
        {"AIRFLOW_CONN_MINE": '{"conn_type": "generic", "password": "secret"}'},
        {"AIRFLOW_CONN_MINE": "generic://user:secret@host", "OPENAI_API_KEY": "other"},
    ],
)
def test_the_key_comes_from_a_connection_or_the_environment(
    environment: dict[str, str], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = {"connection": "mine"} if "AIRFLOW_CONN_MINE" in environment else {}
    one(record(b"x"), ask(server, "openai.embeddings", model="m", api_key="", **settings))


@pytest.mark.parametrize("connection", [{}, {"connection": "absent"}])
def test_without_a_key_the_task_stops(
    connection: dict[str, str], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COHERE_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"COHERE_API_KEY|AIRFLOW_CONN_ABSENT"):
        run(record(b"x"), ask(server, "cohere.command", apiKey="", **connection))


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("cohere.embed", {"model": "embed-v4.0"}),
        ("cohere.rerank", {}),
        ("openai.embeddings", {}),
        ("openai.embeddings", {"model": "m", "field": ".Position"}),
        ("openai.embeddings", {"model": "m", "dimensions": "many"}),
        ("openai.textgen", {"model": "m", "developer_message": "d", "logit_bias.x": "y"}),
        ("openai.textgen", {"model": "m", "developer_message": "d", "store": "perhaps"}),
        ("ollama", {"url": "localhost"}),
    ],
)
def test_wrong_settings_are_refused_by_name(plugin: str, settings: dict[str, str], server: Server) -> None:
    with pytest.raises(ConfigError, match="option"):
        build(ask(server, plugin, **settings))
