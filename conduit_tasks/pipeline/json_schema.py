"""The JSON Schema of the pipeline file, for editors. To import this module gives the models the descriptions of their
keys: the docstrings that follow them."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Annotated, Any

from pydantic import WithJsonSchema

from conduit_tasks.pipeline import model
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


def _describe() -> None:
    # Pydantic's `use_attribute_docstrings` reads the source in each process that loads the models, which takes as long
    # as all the rest of loading them.
    for module in (model, sys.modules[__name__]):
        try:
            source = inspect.getsource(module)
        except OSError:  # installed without its source: a schema without descriptions is one, too
            return
        for node in ast.parse(source).body:
            if not isinstance(node, ast.ClassDef) or not issubclass(keys := getattr(module, node.name), Keys):
                continue
            for key, said in zip(node.body, node.body[1:]):
                match key, said:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        keys.model_fields[name].description = inspect.cleandoc(text)
            # Those that a model refers to stand before it
            keys.model_rebuild(force=True)


_describe()
