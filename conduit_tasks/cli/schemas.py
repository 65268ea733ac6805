"""`conduit schemas`: the built-in schema registry, which `avro.*` use if they name no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conduit_tasks.cli.output import Format, print_json, print_table
from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from conduit_tasks.schemas.registry import RedisRegistry

app = typer.Typer(no_args_is_help=True, help="The Avro schemas of the registry built in: list, show, register.")

_FORMAT = typer.Option(help="text, or json for programs.")


@app.command(name="list")
def list_(
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="Only this subject.")] = None,
    format: Annotated[Format, _FORMAT] = Format.text,
) -> None:
    """Lists every subject with its versions and the id of each."""
    with _registry() as registry:
        found = [each for each in registry.listed() if subject in (None, each[0])]
    if format is Format.json:
        print_json([{"subject": name, "version": version, "id": id} for name, version, id in found])
    else:
        # An id is a name, so it is printed without thousands separators.
        print_table(("SUBJECT", "VERSION", "ID"), [(name, version, str(id)) for name, version, id in found])


@app.command()
def show(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT")],
    version: Annotated[int | None, typer.Option(help="Default: the newest.", min=1)] = None,
) -> None:
    """Prints one schema, as JSON."""
    import orjson

    with _registry() as registry:
        versions = [v for name, v, _ in registry.listed() if name == subject]
        if not versions:
            raise ConfigError(f"the schema registry has no subject {subject}; `conduit schemas list` shows what it has")
        print_json(orjson.loads(registry.by_version(subject, version or max(versions))[1]))


@app.command()
def register(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An Avro schema, JSON.")],
    format: Annotated[Format, _FORMAT] = Format.text,
) -> None:
    """Registers a schema; the same one again keeps its id and its version."""
    schema = _schema(file)
    with _registry() as registry:
        id, version = registry.register_version(subject, schema)
    if format is Format.json:
        print_json({"subject": subject, "version": version, "id": id})
    else:
        print(f"{subject}: version {version}, id {id}")


@contextmanager
def _registry() -> Iterator[RedisRegistry]:
    from conduit_tasks.schemas.registry import RedisRegistry

    registry = RedisRegistry()
    try:
        yield registry
    finally:
        registry.close()


def _schema(file: Path) -> str:
    """Returns the compact JSON of a file's schema. Raises ConfigError if the file holds none."""
    import fastavro
    import orjson

    try:
        schema = orjson.loads(file.read_bytes())
        fastavro.parse_schema(schema)
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ConfigError(f"{file} is no Avro schema: {error}") from None
    return orjson.dumps(schema).decode()
