"""A disk that is really full: a tmpfs of one megabyte, or, where mounting is not allowed, a limit on file sizes."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20


class SmallDisk:
    """`path` takes about `MIB` bytes until `grow` is called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={MIB}", "tmpfs", str(path)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, self.before[1]))

    def grow(self) -> None:
        if self.mounted:
            subprocess.run(["mount", "-o", f"remount,size={64 * MIB}", str(self.path)], check=True)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)

    def remove(self) -> None:
        if self.mounted:
            # Lazy, because a test that failed may have left a file open there.
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(folder / "disk")
    try:
        yield disk
    finally:
        disk.remove()
