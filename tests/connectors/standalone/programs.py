"""The connectors of these tests as programs: two in Go, built once and kept, and one in Python."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GO = ("counter", "books")
QUICK = ("-gcflags=all=-N -l", "-ldflags=-s -w")
"""Options of a build that optimizes nothing and leaves out what a debugger needs: it takes less CPU."""


def built() -> Path:
    """Returns the folder with the connectors in Go; they are built if their sources have changed."""
    sources = sorted(path for path in (HERE / "go").rglob("*") if path.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = ROOT / ".conduit" / "test-connectors"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / digest
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            # `scripts/env.sh --tests` installs one where there is none.
            go = shutil.which("go") or str(Path(sys.executable).parent / "go")
            part = folder / f"{digest}.part"
            command = [go, "build", *QUICK, "-o", f"{part}/", *(f"./{name}" for name in GO)]
            env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
            said = subprocess.run(command, cwd=HERE / "go", env=env, capture_output=True, text=True, check=False)
            assert said.returncode == 0, said.stderr
            part.rename(done)
    return done


def started_by(folder: Path, name: str, *how: str) -> Path:
    """Writes a program that is the connector in Python; `how`: how it breaks the handshake."""
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nsys.argv = {[name, *how]!r}\n"
        "from tests.connectors.standalone.odd import main\nmain()\n"
    )
    path.chmod(0o700)
    return path
