"""The engine of our own: its socket is asked only in a folder that nobody else can write to."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "stack-engine.sh"


def folder(where: Path) -> Path:
    return where / f"conduit-engine-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"


def call(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Calls the script with a `docker` that answers only where DOCKER_HOST is set, as of an engine there."""
    docker = where / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    docker.write_text('#!/bin/sh\n[ -n "$DOCKER_HOST" ]\n')
    docker.chmod(0o755)
    environment = {n: v for n, v in os.environ.items() if n != "DOCKER_HOST"}
    environment |= {"TMPDIR": str(where), "PATH": f"{docker.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("whose", ["one that all may write to", "a link", "another user's"])
@pytest.mark.parametrize("word", ["start", "stop"])
def test_a_folder_that_another_user_may_have_made_is_refused(tmp_path: Path, whose: str, word: str) -> None:
    # Given a folder with the name of ours, in which another user's engine may answer
    made = folder(tmp_path)
    if whose == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        made.symlink_to(tmp_path / "elsewhere")
    else:
        made.mkdir(0o700)
        made.chmod(0o777 if whose == "one that all may write to" else 0o700)
        if whose == "another user's":
            if os.getuid() != 0:
                pytest.skip("only root gives a folder away")
            os.chown(made, 65534, 65534)
    # When an engine is asked for, or ended
    done = call(tmp_path, word)
    # Then the folder is named, and nothing is asked of what lies there
    assert done.returncode == 1
    assert str(made) in done.stderr
    assert "DOCKER_HOST" not in done.stdout
    assert made.exists()


def test_a_folder_of_ones_own_is_taken_and_nobody_else_sees_into_a_new_one(tmp_path: Path) -> None:
    for _ in range(2):
        done = call(tmp_path, "start")
        assert done.returncode == 0, done.stderr
        assert f"DOCKER_HOST=unix://{folder(tmp_path)}/docker.sock" in done.stdout
        assert folder(tmp_path).stat().st_mode & 0o777 == 0o700
