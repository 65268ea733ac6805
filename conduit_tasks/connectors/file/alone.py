"""Refusal of a second writer: a process that finds a file or folder locked closes what it has opened, and is
Unavailable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conduit_tasks.errors import Unavailable


@contextmanager
def alone(path: Path, close: Callable[[], None], explain: Callable[[OSError], Exception]) -> Iterator[None]:
    """Closes what the block opened if it fails. Raises Unavailable if another process holds the lock that the block
    takes, and what `explain` makes of any other OSError."""
    try:
        yield
    except BlockingIOError as error:
        close()
        raise Unavailable(f"{path} is being written by another process; it must end first") from error
    except OSError as error:
        close()
        raise explain(error) from error
    except BaseException:
        close()
        raise
