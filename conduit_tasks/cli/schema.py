"""`conduit schema`: the JSON Schema of the pipeline file."""

from __future__ import annotations

from conduit_tasks.cli.output import print_json


def schema() -> None:
    """Prints the JSON Schema of the pipeline file.

    Save it and begin a pipeline file with `# yaml-language-server: $schema=<path>`: editors then complete and check.
    """
    from conduit_tasks.pipeline.json_schema import json_schema

    print_json(json_schema())
