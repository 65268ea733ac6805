"""Why a file or folder cannot be written: another process holds it, and this one closes what it has opened; or the
system refuses. Both are Unavailable."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conduit_tasks.errors import Unavailable


@contextmanager
def alone(path: Path, close: Callable[[], None]) -> Iterator[None]:
    """Closes what the block opened if it fails. Raises Unavailable for an OSError: another process holds the lock that
    the block takes, or `unavailable`."""
    try:
        yield
    except BlockingIOError as error:
        close()
        raise Unavailable(f"{path} is being written by another process; it must end first") from error
    except OSError as error:
        close()
        raise unavailable(path, error) from error
    except BaseException:
        close()
        raise


def unavailable(path: Path, error: OSError) -> Unavailable:
    """Returns the error that says what to do about one of the system."""
    todo = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the path"
    return Unavailable(f"{path} cannot be written: {error.strerror}; {todo}, and delivery goes on")
