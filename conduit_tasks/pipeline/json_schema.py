"""The JSON Schema of the pipeline file, for editors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from conduit_tasks.pipeline.model import Keys, PipelineKeys


class FileKeys(Keys):
    """A Conduit pipeline file, version 2.2, with the keys of Conduit Tasks."""

    version: Annotated[str, WithJsonSchema({"enum": ["2.0", "2.1", "2.2", 2.0, 2.1, 2.2]})] = "2.2"
    """Version of Conduit's format."""
    pipelines: list[PipelineKeys]
    """The pipelines of this document."""


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of the file, for editors (`# yaml-language-server: $schema=…`)."""
    schema = FileKeys.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
