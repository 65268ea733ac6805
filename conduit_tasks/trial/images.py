"""The images of the stack: the official ones if a registry answers, else stand-ins of Debian packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from conduit_tasks.trial.engine import Engine, TrialError

OFFICIAL = "python:3.11.13-slim-bookworm"
BASE = "conduit-standin/base:1"
IMAGE = "conduit-tasks:local"
PULL_PATIENCE = 90.0
"""Timeout in seconds; of registries that are shut off, some refuse at once and some do not answer."""
BUILD = 1800.0
MACHINE = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def ensure(engine: Engine, say: Callable[[str], None]) -> dict[str, str]:
    """Builds missing images. Returns the variables of docker-compose.yaml that name images."""
    if _official(engine):
        say("images: the official ones, and our own")
        _build(engine, IMAGE, "Dockerfile", engine.root, OFFICIAL)
        return {"CONDUIT_IMAGE": IMAGE}
    say("images: no registry answers, so stand-ins are built of Debian's packages")
    if not _has(engine, BASE):
        say("  base (debootstrap)")
        engine.run([str(engine.root / "compose/standin/base.sh"), BASE], timeout=BUILD)
    say("  Airflow, Spark and the project")
    _build(engine, IMAGE, "Dockerfile", engine.root, BASE)
    for name in ("postgres", "redis"):
        say(f"  {name}")
        _build(engine, f"conduit-standin/{name}:1", f"compose/standin/{name}.Dockerfile", engine.root, BASE)
    say("  kafka")
    engine.run([str(engine.root / "scripts/kafka.sh")], timeout=BUILD)
    _build(engine, "conduit-standin/kafka:1", "compose/standin/kafka.Dockerfile", _kafka(engine.root), BASE)
    return {
        "CONDUIT_IMAGE": IMAGE,
        "POSTGRES_IMAGE": "conduit-standin/postgres:1",
        "REDIS_IMAGE": "conduit-standin/redis:1",
        # Debian's Redis is older than 7.2, the first that can be asked whether an event is on disk.
        "REDIS_APPENDFSYNC": "always",
        "KAFKA_IMAGE": "conduit-standin/kafka:1",
    }


def _official(engine: Engine) -> bool:
    if _has(engine, BASE):
        return False
    try:
        engine.docker("pull", "-q", OFFICIAL, timeout=PULL_PATIENCE)
    except TrialError:
        return False
    return True


def _has(engine: Engine, image: str) -> bool:
    return bool(engine.docker("image", "ls", "-q", image).strip())


def _build(engine: Engine, image: str, file: str, context: Path, base: str) -> None:
    """Builds an image by the classic builder, which needs no plugin, with the machine's proxy and pip settings, if
    any."""
    words = ["build", "-q", "-t", image, "-f", str(engine.root / file), "--build-arg", f"BASE_IMAGE={base}"]
    # By name only: the values stay out of the list of processes.
    names = [name for name in (*MACHINE, *PROXIES) if os.environ.get(name)]
    words += [word for name in names for word in ("--build-arg", name)]
    engine.run(["env", "DOCKER_BUILDKIT=0", "docker", *words, str(context)], timeout=BUILD)


def _kafka(root: Path) -> Path:
    """Makes a build context with the jars, linked instead of copied if that is possible."""
    context = root / ".conduit" / "stack" / "kafka"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(root / ".conduit" / "kafka" / "jars", context / "jars", copy_function=link_or_copy)
    shutil.copy2(root / "compose/standin/kafka-entrypoint.sh", context / "entrypoint.sh")
    return context


def link_or_copy(source: str, target: str) -> None:
    """Makes a hard link, or a copy if a link is not possible, as between two file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
