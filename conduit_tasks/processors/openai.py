"""`openai.embeddings`, `openai.textgen`: OpenAI's API, or a compatible one, with Conduit's parameters."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.field import reference
from conduit_tasks.processors.http_calls import COMMON, Retry
from conduit_tasks.processors.models import CONNECTION, ModelProcessor, as_text
from conduit_tasks.record.record import Record

_COMMON = (
    Option("field", "the field that is sent, and gets the answer", default=".Payload.After"),
    Option("api_key", "OpenAI's API key; default: OPENAI_API_KEY of the environment", secret=True),
    CONNECTION,
    Option("url", "where the API is", default="https://api.openai.com/v1"),
    Option("max_retries", "how often a failed request is repeated", default="3"),
    Option("initial_backoff", "the first waiting time, in milliseconds", default="1000"),
    Option("max_backoff", "the longest, in milliseconds", default="30000"),
    Option("backoff_factor", "by what it grows", default="2.0"),
    *COMMON,
)


class _OpenAI(ModelProcessor):
    key_option, key_variable = "api_key", "OPENAI_API_KEY"

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._field = reference(self.spec.name, "field", s["field"])
        if self._field.root in ("Position", "Operation", "Payload") or self._field.text == ".Metadata":
            raise ConfigError(f"{self.spec.name}: option 'field': {self._field.text} cannot be set")
        self.retry = Retry(
            options.integer(s, "max_retries"),
            options.number(s, "backoff_factor", least=1e-9),
            options.integer(s, "initial_backoff") / 1000,
            options.integer(s, "max_backoff") / 1000,
        )

    async def handle(self, record: Record) -> Record:
        value = self._field.get(record)
        if value is not None:
            self._field.set(record, await self._answer(as_text(value)))
        return record

    async def _answer(self, text: str) -> str:
        raise NotImplementedError

    async def _ask(self, path: str, question: Any) -> Any:
        return await self.ask(path, question, again=lambda status: status in (429, 500, 502, 503, 504))


class Embeddings(_OpenAI):
    """The field becomes its embedding, a JSON array of numbers."""

    spec = Spec(
        "openai.embeddings",
        "Replaces a field by its embedding of an OpenAI model.",
        (
            Option("model", "for example text-embedding-3-small", required=True),
            Option("dimensions", "how many numbers"),
            Option("encoding_format", "how they travel", choices=("float", "base64")),
            Option("user", "identifies the user to OpenAI"),
            *_COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._question = _given(self.spec.name, self.settings, {"dimensions": int, "encoding_format": str, "user": str})

    async def _answer(self, text: str) -> str:
        answer = await self._ask("/embeddings", {"model": self.settings["model"], "input": text, **self._question})
        try:
            embedding = answer["data"][0]["embedding"]
            if isinstance(embedding, str):
                import numpy as np

                floats = np.frombuffer(base64.b64decode(embedding), "<f4")
                return orjson.dumps(floats, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        except (KeyError, TypeError, IndexError, ValueError):
            raise self.unexpected(answer) from None
        return orjson.dumps(embedding).decode()


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"'{text}' is neither true nor false")
    return text.lower() == "true"


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_OPTIONAL: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "max_tokens": (int, "the most tokens to make"),
    "max_completion_tokens": (int, "likewise, of models that reason"),
    "temperature": (float, "0 to 2; lower is more certain"),
    "top_p": (float, "nucleus sampling"),
    "n": (int, "how many answers; the first is taken"),
    "stop": (_list, "comma-separated texts that end an answer"),
    "presence_penalty": (float, "against what was said"),
    "frequency_penalty": (float, "against what was said often"),
    "seed": (int, "for answers that repeat"),
    "logprobs": (_switch, "whether probabilities come along"),
    "top_logprobs": (int, "of how many tokens"),
    "user": (str, "identifies the user to OpenAI"),
    "store": (_switch, "whether OpenAI keeps the conversation"),
    "reasoning_effort": (str, "how much a model reasons"),
}
"""Option of the API → its kind and meaning; sent if it is set."""
_NAMES = {"logprobs": "log_probs", "top_logprobs": "top_log_probs"}
"""The API's names → Conduit's, if they differ."""


class TextGen(_OpenAI):
    """The field is the user's message; the answer's text replaces it."""

    spec = Spec(
        "openai.textgen",
        "Replaces a field by what an OpenAI model answers to it.",
        (
            Option("model", "for example gpt-4o-mini", required=True),
            Option("developer_message", "guides the model", required=True),
            *(Option(_NAMES.get(name, name), text) for name, (_, text) in _OPTIONAL.items()),
            Option("logit_bias.*", "a token's likelihood, a whole number"),
            Option("metadata.*", "goes along with a stored conversation"),
            Option("strict_output", "taken, without effect, as in Conduit", default="false"),
            Option("stream", "taken, without effect, as in Conduit"),
            *_COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        named = {
            ours: self.settings[_NAMES.get(ours, ours)] for ours in _OPTIONAL if _NAMES.get(ours, ours) in self.settings
        }
        self._question = _given(self.spec.name, named, {name: kind for name, (kind, _) in _OPTIONAL.items()})
        for group, kind in (("logit_bias", int), ("metadata", str)):
            inner = {k.removeprefix(f"{group}."): v for k, v in self.settings.items() if k.startswith(f"{group}.")}
            if inner:
                self._question[group] = _given(self.spec.name, inner, dict.fromkeys(inner, kind))

    async def _answer(self, text: str) -> str:
        messages = [
            {"role": "developer", "content": self.settings["developer_message"]},
            {"role": "user", "content": text},
        ]
        question = {"model": self.settings["model"], "messages": messages, **self._question}
        answer = await self._ask("/chat/completions", question)
        try:
            said = answer["choices"][0]["message"]["content"]
        except (KeyError, TypeError, IndexError):
            raise self.unexpected(answer) from None
        if not isinstance(said, str):
            raise self.unexpected(answer)
        return said


def _given(plugin: str, settings: Mapping[str, str], kinds: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Returns the settings that are given, converted to their kinds. Raises ConfigError that names the option."""
    out: dict[str, Any] = {}
    for name, kind in kinds.items():
        text = settings.get(name, "").strip()
        if text:
            try:
                out[name] = kind(text)
            except ValueError as error:
                raise ConfigError(f"{plugin}: option '{name}': {error}") from None
    return out
