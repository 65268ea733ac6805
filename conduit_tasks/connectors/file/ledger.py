"""Owner of a destination's file and start of its unconfirmed part, stored in a small file beside it.

The confirmed length alone does not say where to cut before the first confirmation, and does not distinguish this
destination's lines from those of another one with the same path.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from conduit_tasks.errors import ConfigError
from conduit_tasks.spool.durable import replace_file

CONFIRMED = ""


def of_another(state: dict[str, Any]) -> str:
    """Returns a name of a state that another plugin, or the other format, has left to the destination. It says nothing
    of what is there: all of that is kept, and what is written from then on is cut back to there."""
    return f"another's {hashlib.sha256(orjson.dumps(state, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]}"


@dataclass(frozen=True)
class Ledger:
    """Content of the ledger. `owner`: id in every state of this file's writer. `start`: length at which the owner
    began. `previous`: owner in the state before (None: no state); CONFIRMED once the owner's own state came back. `by`:
    the destination; if it has no state, only this distinguishes it from another one without (None: of an
    older version)."""

    owner: str
    previous: str | None
    start: int
    by: str | None = None


def path_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.conduit")


def read(file: Path) -> Ledger | None:
    """Returns the ledger, None if there is none. Raises ConfigError if it is damaged; OSError."""
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
    """Stores a new owner from length `start`; durable on return. Raises OSError."""
    ledger = Ledger(secrets.token_hex(8), previous, start, by)
    replace_file(path_of(file), orjson.dumps(asdict(ledger)))
    return ledger


def confirm(file: Path, ledger: Ledger) -> Ledger:
    """Stores that the owner's state was confirmed: from now on only the state says where to cut. Raises OSError."""
    if ledger.previous == CONFIRMED:
        return ledger
    ledger = replace(ledger, previous=CONFIRMED)
    replace_file(path_of(file), orjson.dumps(asdict(ledger)))
    return ledger
