"""TLS contexts of HTTP clients, read once in a process."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from pathlib import Path


def trusting(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """Returns a client's TLS context, not to be changed: it is the same one until a file changes. Raises OSError if a
    file cannot be read.

    `ca`: certificates to trust, PEM; default: the system's. `cert`, `key`: certificate of ours. `verify`: whether the
    server's certificate is checked.
    """
    system = ssl.get_default_verify_paths()
    read = [ca, cert, key] if ca else [system.cafile, system.capath, cert, key]
    return _context(ca, cert, key, verify, tuple(_file(path) for path in read if path is not None))


@lru_cache(maxsize=8)
def _context(
    ca: Path | None, cert: Path | None, key: Path | None, verify: bool, files: tuple[tuple[object, ...], ...]
) -> ssl.SSLContext:
    """Returns a cached context, as to read the certificates of a system takes 50 ms. `files`: those that are read, as
    they are now."""
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _file(path: Path | str) -> tuple[object, ...]:
    """Returns what is another one once a file, or a folder's list of files, has changed."""
    found = os.stat(path)
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns
