"""`ollama`: a model of an Ollama server changes the record's data as a prompt says."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import RecordError
from conduit_tasks.processors.http_calls import BACKOFF, COMMON, backoff
from conduit_tasks.processors.models import ModelProcessor
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record

INSTRUCTIONS = (
    "Change the following record as the instructions say. Answer with the changed record alone, as one JSON object, "
    "without any explanation."
)


class Ollama(ModelProcessor):
    """The answer, one JSON object, becomes the payload after. Anything else nacks the record."""

    key_option = key_variable = ""

    spec = Spec(
        "ollama",
        "Changes records as a prompt says, through an Ollama server.",
        (
            Option(
                "url",
                "where the server is, for example http://localhost:11434",
                required=True,
                example="http://localhost/",
            ),
            Option("model", "name of the model", default="llama3.2"),
            Option("prompt", "what is to be done with each record", default=""),
            *BACKOFF,
            *COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.retry = backoff(self.settings)

    async def handle(self, record: Record) -> Record:
        data = jsons.dumps(record.to_opencdc()["payload"]).decode()
        prompt = f"{INSTRUCTIONS}\nInstructions: {self.settings['prompt']}\nRecord: {data}"
        question = {"model": self.settings["model"], "prompt": prompt, "stream": False}
        answer = await self.ask("/api/generate", question, again=lambda status: status >= 500)
        said = answer.get("response") if isinstance(answer, dict) else None
        if not isinstance(said, str) or not answer.get("done"):
            raise self.unexpected(answer)
        try:
            changed = jsons.loads(said)
        except jsons.JSONDecodeError:
            raise RecordError(f"ollama: the model did not answer in JSON: {said[:200]}") from None
        if not isinstance(changed, dict):
            raise RecordError(f"ollama: the model's answer is no JSON object: {said[:200]}")
        record.after = changed
        return record

    def _authorization(self) -> dict[str, str]:
        return {}
