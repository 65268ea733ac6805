"""`cohere.command`, `cohere.embed`, `cohere.rerank`: Cohere's models through its API, version 2."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.field import data_reference, reference
from conduit_tasks.processors.http_calls import BACKOFF, COMMON, backoff
from conduit_tasks.processors.many import Made
from conduit_tasks.processors.models import CONNECTION, ModelProcessor, as_text
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record, data_bytes

MODEL_METADATA = "cohere.embed.model"
DOCUMENTS = 1_000
"""Limit of the documents that the API ranks in one request."""
_KEY = Option("apiKey", "Cohere's API key; default: COHERE_API_KEY of the environment", secret=True)
_URL = Option("url", "where the API is", default="https://api.cohere.com")
_COMMON = (_KEY, CONNECTION, _URL, *BACKOFF, *COMMON)


class _Cohere(ModelProcessor):
    key_option, key_variable = "apiKey", "COHERE_API_KEY"

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.retry = backoff(self.settings)

    async def _ask(self, path: str, question: Any) -> Any:
        return await self.ask(path, question, again=lambda status: status in (500, 503, 504))


class Command(_Cohere):
    """The payload after is the message; the answer's text goes into `response.body`."""

    spec = Spec(
        "cohere.command",
        "Asks Cohere's command model.",
        (
            Option("model", "name of the model", default="command"),
            Option("response.body", "the field that gets the answer", default=".Payload.After"),
            *_COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._into = reference("cohere.command", "response.body", self.settings["response.body"])

    async def handle(self, record: Record) -> Record:
        message = {"role": "user", "content": data_bytes(record.after).decode(errors="replace")}
        question = {"model": self.settings["model"], "messages": [message], "stream": False}
        answer = await self._ask("/v2/chat", question)
        try:
            [content] = answer["message"]["content"]
            text = content["text"]
        except (KeyError, TypeError, ValueError):
            raise self.unexpected(answer) from None
        self._into.set(record, text)
        return record


class Embed(_Cohere):
    """The embedding of `inputField` replaces the payload after. It is JSON compressed with zstd: raw data becomes these
    bytes, structured data `{"embedding": their base64}`. One request holds several records."""

    spec = Spec(
        "cohere.embed",
        "Replaces the payload by its embedding of Cohere's embed model.",
        (
            Option("model", "name of the model", default="embed-english-v2.0"),
            Option("inputType", "search_document, search_query, classification, …; required from version 3 on"),
            Option("inputField", "what is embedded, under .Key or .Payload", default=".Payload.After"),
            Option("maxTextsPerRequest", "at most 96", default="96"),
            *_COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        if "v2" not in s["model"] and not s.get("inputType"):
            raise ConfigError(f"cohere.embed: option 'inputType' is required for the model {s['model']} (v3 or higher)")
        self._field = data_reference("cohere.embed", "inputField", s["inputField"])
        self._most = options.integer(s, "maxTextsPerRequest", least=1)

    async def handle_many(self, records: Sequence[Record]) -> list[Made]:
        groups = [records[i : i + self._most] for i in range(0, len(records), self._most)]
        return [made for group in await self.each(groups, self._group) for made in group]

    async def _group(self, records: Sequence[Record]) -> list[Made]:
        """Embeds all in one request; if that fails, one by one, so that a record is nacked for its own failure only."""
        try:
            embeddings = await self._embeddings([as_text(self._field.get(record)) for record in records])
        except RecordError as error:
            if len(records) == 1:
                return [error]
            return [made for record in records for made in await self._group([record])]
        return [self._embedded(record, embedding) for record, embedding in zip(records, embeddings)]

    async def _embeddings(self, texts: list[str]) -> list[list[float]]:
        question: dict[str, Any] = {"model": self.settings["model"], "texts": texts, "embedding_types": ["float"]}
        if self.settings.get("inputType"):
            question["input_type"] = self.settings["inputType"]
        answer = await self._ask("/v2/embed", question)
        try:
            embeddings: list[list[float]] = answer["embeddings"]["float"]
        except (KeyError, TypeError):
            raise self.unexpected(answer) from None
        if len(embeddings) != len(texts):
            raise RecordError(f"cohere.embed: {len(texts)} texts were sent, {len(embeddings)} embeddings came back")
        return embeddings

    def _embedded(self, record: Record, embedding: list[float]) -> Record:
        import pyarrow as pa

        compressed = pa.Codec("zstd").compress(jsons.dumps(embedding), asbytes=True)
        record.metadata[MODEL_METADATA] = self.settings["model"]
        if isinstance(record.after, dict):
            record.after = {"embedding": base64.b64encode(compressed).decode()}
        elif record.after is not None:
            record.after = compressed
        return record


class Rerank(_Cohere):
    """Ranks records that arrive together by how well they answer `query`; each keeps its place in the stream, and gets
    its document, its index among them and its relevance score as JSON."""

    spec = Spec(
        "cohere.rerank",
        "Says how relevant records are to a query, by Cohere's rerank model.",
        (
            Option("query", "the search query", required=True),
            Option("model", "name of the model", default="rerank-v3.5"),
            Option("request.body", "the field that is the document", default=".Payload.After"),
            Option("response.body", "the field that gets the result", default=".Payload.After"),
            *_COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._from = reference("cohere.rerank", "request.body", self.settings["request.body"])
        self._into = reference("cohere.rerank", "response.body", self.settings["response.body"])

    async def handle_many(self, records: Sequence[Record]) -> list[Made]:
        groups = [records[i : i + DOCUMENTS] for i in range(0, len(records), DOCUMENTS)]
        out: list[Made] = []
        for group, made in zip(groups, await self.each(groups, self._group)):
            out.extend([made] * len(group) if isinstance(made, RecordError) else made)
        return out

    async def _group(self, records: Sequence[Record]) -> list[Record]:
        documents = [as_text(self._from.get(record)) for record in records]
        question = {
            "model": self.settings["model"],
            "query": self.settings["query"],
            "documents": documents,
            "return_documents": True,
        }
        answer = await self._ask("/v2/rerank", question)
        try:
            scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
            results = [
                {"document": {"text": text}, "index": i, "relevance_score": scores[i]}
                for i, text in enumerate(documents)
            ]
        except (KeyError, TypeError):
            raise self.unexpected(answer) from None
        for record, result in zip(records, results):
            self._into.set(record, jsons.dumps(result).decode())
        return list(records)
