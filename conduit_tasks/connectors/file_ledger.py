"""To whom a destination's file belongs, and where its unconfirmed part begins: a small file beside it.

The confirmed length alone does not say where to cut back to before the first confirmation, nor tells this
destination's lines from those of another that was given the same path.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from conduit_tasks.errors import ConfigError
from conduit_tasks.spool.durable import replace_file

CONFIRMED = ""


@dataclass(frozen=True)
class Ledger:
    """`owner`: in every state of this file's writer. `start`: length at which the owner began. `previous`: owner in
    the state from before (None: no state); CONFIRMED once the owner's own state came back. `by`: which destination
    that is; without a state nothing else tells it from another one that has none (None: of an older version)."""

    owner: str
    previous: str | None
    start: int
    by: str | None = None


def path_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.conduit")


def read(file: Path) -> Ledger | None:
    """Raises ConfigError where the ledger is damaged; OSError."""
    try:
        return Ledger(**orjson.loads(path_of(file).read_bytes()))
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, TypeError) as e:
        raise ConfigError(
            f"{path_of(file)} is damaged ({e}): which lines of {file} are confirmed cannot be told. Remove both, or "
            "the first alone to keep all lines that are there"
        ) from e


def begin(file: Path, previous: str | None, start: int, by: str) -> Ledger:
    """A new owner from length `start`; durable on return. Raises OSError."""
    ledger = Ledger(secrets.token_hex(8), previous, start, by)
    replace_file(path_of(file), orjson.dumps(asdict(ledger)))
    return ledger


def confirm(file: Path, ledger: Ledger) -> Ledger:
    """The owner's state was confirmed: from now on only the state says where to cut. Raises OSError."""
    if ledger.previous == CONFIRMED:
        return ledger
    ledger = replace(ledger, previous=CONFIRMED)
    replace_file(path_of(file), orjson.dumps(asdict(ledger)))
    return ledger
