"""The class-data archive (AppCDS) of the Spark driver: built once, used when valid, never needed.

A JVM that maps an archive of already parsed and verified classes starts a Spark driver with less than half
the CPU (see `benchmarks`). An archive belongs to one JDK and one set of jars, in one order, from a class path of jars
only; so `SPARK_CONF_DIR` is an empty folder, and both are part of the archive's name. The JVM checks this again by
itself, and goes on without an archive that does not fit.

Next to the archive is the command line that Spark's own launcher built for a client-mode driver, so that
`conduit_tasks.spark.submit` can start the driver without a second JVM and three shell scripts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from conduit_tasks.waits import lock

log = logging.getLogger(__name__)

FORMAT = 1
SUBMIT_CLASS = "org.apache.spark.deploy.SparkSubmit"
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for C1 only and one GC thread: a driver lives for seconds, and Python workers move the rows."""
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Options that hide the JVM's messages about an archive that does not fit; it goes on without one."""


KEPT = 3
"""Archives that a folder keeps: homes that share it may have different Sparks."""

UNWANTED = ("--add-modules=jdk.incubator.vector",)
"""Options of Spark's launcher that are left out: only MLlib uses the module, and a JVM with an added module cannot map
its archived module graph: 0.4 CPU-s."""


@dataclass(frozen=True)
class Archive:
    """An archive that fits the JDK and jars of this machine. `command`: the JVM's argv up to SparkSubmit's class."""

    path: Path
    command: tuple[str, ...]
    conf_dir: Path


def spark_home() -> Path:
    """Returns the folder of the installed pyspark, without importing it; `SPARK_HOME` wins. Raises ModuleNotFoundError
    if there is none."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed: pip install conduit-tasks")
    return Path(spec.origin).parent


def java_binary() -> Path | None:
    """Returns the `java` that Spark would use: `JAVA_HOME`'s, else the first on the PATH, links resolved; None if there
    is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    return Path(found).resolve() if found else None


def folder(home: Path) -> Path:
    """Returns the folder of archives: `.conduit/cds` of the home, or `CONDUIT_CLASS_DATA`, which homes can share."""
    return home / (os.environ.get("CONDUIT_CLASS_DATA") or ".conduit/cds")


def empty_conf_dir(home: Path) -> Path:
    """Returns an empty folder for `SPARK_CONF_DIR`, made if needed: a class path with a filled folder cannot be
    archived."""
    path = folder(home) / "conf"
    path.mkdir(parents=True, exist_ok=True)
    return path


@lru_cache(maxsize=8)
def fingerprint(java: Path, spark: Path, conf_dir: Path) -> str:
    """Returns 16 hex digits of a hash over the JDK, the jars (name, size, time) and the paths: an archive depends on
    them."""
    digest = hashlib.sha256(f"{FORMAT}\0{java}\0{spark}\0{conf_dir}\0{JVM_OPTIONS}".encode())
    release = java.parent.parent / "release"
    digest.update(release.read_bytes() if release.exists() else str(java.stat().st_mtime_ns).encode())
    for entry in sorted(os.scandir(spark / "jars"), key=lambda e: e.name):
        about = entry.stat()
        digest.update(f"\0{entry.name}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def find(home: Path) -> Archive | None:
    """Returns the archive below `home` that fits this machine, or None if there is none (yet)."""
    java = java_binary()
    if java is None:
        return None
    conf_dir = empty_conf_dir(home)
    path = folder(home) / f"{fingerprint(java, spark_home(), conf_dir)}.jsa"
    try:
        about = json.loads(path.with_suffix(".json").read_text())
        if path.stat().st_size != about["size"]:
            log.warning("the class-data archive %s is damaged; starting drivers without it", path)
            return None
        return Archive(path, tuple(about["command"]), conf_dir)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        log.warning("%s cannot be read (%s); starting drivers without an archive", path.with_suffix(".json"), error)
        return None


def ensure(home: Path, timeout: float = 240.0) -> Archive | None:
    """Returns the fitting archive, built if there is none; None if it cannot be built (the reason is logged)."""
    found = find(home)
    if found is not None:
        return found
    try:
        with _alone(folder(home), timeout):
            if find(home) is None:  # nobody built it meanwhile
                build(home, timeout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"it took longer than {timeout:g} s; the next start tries again" if late else error
        log.warning("no class-data archive could be built, drivers start without one: %s", why)
        return None
    return find(home)


@contextmanager
def _alone(place: Path, timeout: float) -> Iterator[None]:
    """Allows one build at a time in a folder; a build takes a core for most of a minute."""
    with (place / "building.lock").open("w") as file:
        lock(file, timeout)
        yield


def build(home: Path, timeout: float) -> None:
    """Builds the archive in a side folder, renames it, then removes the oldest beyond KEPT, of other JDKs and jars.

    Raises OSError, SubprocessError or ValueError.
    """
    java = java_binary()
    if java is None:
        raise FileNotFoundError("no java on the PATH and no JAVA_HOME; install a JRE of version 17 or later")
    started = time.monotonic()
    conf_dir, spark, place = empty_conf_dir(home), spark_home(), folder(home)
    env = {**os.environ, "SPARK_HOME": str(spark), "SPARK_CONF_DIR": str(conf_dir), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"PYTHONHASHSEED": "0", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = _launcher_command(java, spark, env)
    target = place / f"{fingerprint(java, spark, conf_dir)}.jsa"
    with tempfile.TemporaryDirectory(dir=place, prefix="building-") as side:
        archive = Path(side) / target.name
        argv = [*command, *JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}", *QUIET, SUBMIT_CLASS]
        argv += ["--master", "local[1]", "--conf", "spark.ui.enabled=false", __file__]
        done = subprocess.run(  # noqa: S603  the launcher's own command line
            argv, env=env, cwd=side, timeout=timeout, capture_output=True, text=True, check=False
        )
        if done.returncode or not archive.exists():
            raise ValueError(f"the training run ended with {done.returncode}: {done.stderr[-500:]}")
        os.replace(archive, target)
        about = {"command": command, "size": target.stat().st_size, "seconds": round(time.monotonic() - started, 1)}
        (Path(side) / "about").write_text(json.dumps(about))
        os.replace(Path(side) / "about", target.with_suffix(".json"))
    prune(place)


def prune(place: Path) -> None:
    """Removes the oldest archives of a folder, beyond KEPT."""
    built = sorted(place.glob("*.json"), key=lambda about: about.stat().st_mtime)
    for old in built[:-KEPT]:
        old.unlink(missing_ok=True)
        old.with_suffix(".jsa").unlink(missing_ok=True)


def _launcher_command(java: Path, spark: Path, env: Mapping[str, str]) -> list[str]:
    """Returns the argv that Spark's launcher would run for a client-mode driver, up to, and without, SparkSubmit's
    class."""
    script = '. "$SPARK_HOME/bin/load-spark-env.sh"; exec "$0" -cp "$SPARK_HOME/jars/*" "$@"'
    argv = ["bash", "-c", script, str(java), "org.apache.spark.launcher.Main", SUBMIT_CLASS]
    argv += ["--master", "local[1]", "app.py"]
    done = subprocess.run(  # noqa: S603  nothing in it comes from outside
        argv, env=dict(env), capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL
    )
    words = [word for word in done.stdout.decode().split("\0") if word.strip()]
    if SUBMIT_CLASS not in words:
        raise ValueError("Spark's launcher gave no command line for a driver")
    return [str(java), *(word for word in words[1 : words.index(SUBMIT_CLASS)] if word not in UNWANTED)]


def train() -> None:
    """Loads the classes that our runs need: an RDD through Python workers, Arrow both ways, Parquet, a little SQL."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("conduit-class-data").getOrCreate()
    total = spark.sparkContext.parallelize(range(4), 2).mapPartitions(lambda rows: [sum(rows)]).sum()
    frame = spark.range(4).mapInArrow(lambda batches: batches, "id bigint")
    frame.write.mode("overwrite").parquet("train.parquet")
    spark.read.parquet("train.parquet").createOrReplaceTempView("records")
    rows = spark.sql("SELECT count(*) AS n FROM records WHERE id < 3").collect()
    spark.stop()
    if (total, rows[0]["n"]) != (6, 3):
        raise SystemExit(1)


if __name__ == "__main__":
    train()
