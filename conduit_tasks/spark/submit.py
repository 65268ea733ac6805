"""Start of a Spark driver: configuration (`include/spark-defaults.conf` wins over ours), environment (on YARN and
Kubernetes only what is no secret) and, if it is known, the JVM's whole command line, which is faster.

Only the JVM of a driver in client mode on this machine (`local`, `spark://`) is tuned; YARN, Kubernetes and cluster
mode keep the settings of their connection and their `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from conduit_tasks.errors import ConfigError
from conduit_tasks.private import python_sockets
from conduit_tasks.spark import cds

LOG4J = Path(__file__).with_name("log4j2.properties")
DEFAULTS_FILE = "include/spark-defaults.conf"
"""File with the user's own Spark settings, below the home folder; in the format of Spark's file of that name."""

_LAUNCHER_ONLY_CONF = (
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.defaultExtraClassPath",
)
_LAUNCHER_ONLY_ENV = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Settings that Spark's launcher turns into a class path; if one is set, the launcher is run (and no archive fits)."""


ELSEWHERE = {"CONDUIT_SMALL_RECORDS": "0"}
"""Settings of a driver whose executors are on other machines, unless the environment has others: they may reach what
this machine does not, so small work is done there, too."""


@dataclass(frozen=True)
class Launch:
    """Start of one driver. `command`: the JVM's argv up to SparkSubmit's class; None = run `spark-submit`."""

    conf: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] | None = None


def launch(
    home: Path,
    master: str,
    deploy_mode: str | None,
    conf: Mapping[str, str] | None = None,
    *,
    quick_jit: bool = True,
    own: Mapping[str, str] | None = None,
    jvm: Sequence[str] = (),
    launcher: bool = False,
) -> Launch:
    """Returns the start of a driver for this master. `conf` wins over the user's file, and both over ours and over
    `own`.

    `quick_jit`: compile with C1 only; right if rows pass through Python workers, wrong for long SQL in the JVM.
    `jvm`: further options of the JVM. `launcher`: PySpark runs `spark-submit`, so the command is None.

    Raises ConfigError if the user's `spark-defaults.conf` cannot be read.
    """
    given = {**(own or {}), **read_defaults(home / DEFAULTS_FILE), **(conf or {})}
    local = master.split("[", maxsplit=1)[0] == "local"
    if deploy_mode == "cluster" or not (local or master.startswith("spark://")):
        return Launch(given, _remote_environment())
    merged = {**_own_conf(home, local), **given}
    options = [f"-Dlog4j2.configurationFile={LOG4J}", *_jvm_options(quick_jit), *jvm]
    archive = cds.find(home)
    if archive is not None:
        options += [f"-XX:SharedArchiveFile={archive.path}", *cds.QUIET]
    options += shlex.split(merged.pop("spark.driver.extraJavaOptions", ""))
    env = _local_environment(home, local)
    if archive is not None and not launcher and not _needs_launcher(merged):
        memory = merged.get("spark.driver.memory") or os.environ.get("SPARK_DRIVER_MEMORY") or "1g"
        command = [f"-Xmx{memory}" if word.startswith("-Xmx") else word for word in archive.command]
        return Launch(merged, env, (*command, *options, cds.SUBMIT_CLASS))
    merged["spark.driver.extraJavaOptions"] = shlex.join(options)
    return Launch(merged, env)


def read_defaults(path: Path) -> dict[str, str]:
    """Reads a `spark-defaults.conf`: a key and a value per line, separated by blanks or `=`; `#` begins a comment line.
    {} if there is no such file. Raises ConfigError for any other line."""
    if not path.exists():
        return {}
    out = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = re.match(r"\s*+(spark\.[^\s=]++)[\s=]++(.*)", line)
        if found is None:
            raise ConfigError(f"{path}:{number}: expected `spark.some.key value`, found {line.strip()[:80]!r}")
        out[found[1]] = found[2].rstrip()
    return out


@contextmanager
def properties_file(conf: Mapping[str, str]) -> Iterator[str | None]:
    """Yields the name of a file of these properties that only we can read, for the block; None if there are none."""
    if not conf:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="conduit-", suffix=".properties") as file:
        file.writelines(f"{_escaped(name, ' :=#!')}={_escaped(value)}\n" for name, value in conf.items())
        file.flush()
        yield file.name


def _escaped(text: str, special: str = "") -> str:
    """Escapes text for `java.util.Properties`."""
    text = (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    for character in special:
        text = text.replace(character, f"\\{character}")
    return f"\\{text}" if text.startswith(" ") else text


def _own_conf(home: Path, local: bool) -> dict[str, str]:
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(home / ".conduit" / "warehouse"),
    }
    if local:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.python.daemon.module": "conduit_tasks.spark.plain_daemon",
            # Over TCP both sides of a small job wait for each other, some 40 ms (Nagle's algorithm).
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.python.unix.domain.socket.dir": str(python_sockets(home)),
        }
    return conf


def _jvm_options(quick_jit: bool) -> list[str]:
    return list(cds.JVM_OPTIONS) if quick_jit else [o for o in cds.JVM_OPTIONS if "TieredStopAtLevel" not in o]


def _needs_launcher(conf: Mapping[str, str]) -> bool:
    return any(conf.get(key) for key in _LAUNCHER_ONLY_CONF) or any(os.environ.get(key) for key in _LAUNCHER_ONLY_ENV)


def _local_environment(home: Path, local: bool) -> dict[str, str]:
    """Returns the additions to the driver's environment, which otherwise is the task's own (CONDUIT_* among it)."""
    bin_dir = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    env = {
        "PATH": path if bin_dir in path.split(os.pathsep) else f"{bin_dir}{os.pathsep}{path}",
        "SPARK_HOME": str(cds.spark_home()),
        "SPARK_CONF_DIR": str(cds.empty_conf_dir(home)),
        # As spark-submit does: executors and driver must agree on the hash of a string.
        "PYTHONHASHSEED": "0",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if local:
        env["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        env |= elsewhere()
    return env


def elsewhere() -> dict[str, str]:
    """Returns ELSEWHERE, with what the environment says in its place."""
    return {name: os.environ.get(name, value) for name, value in ELSEWHERE.items()}


def _remote_environment() -> dict[str, str]:
    """Returns the installation's settings for a driver on YARN or Kubernetes, where they become visible options.

    Only settings that are surely no secret are passed: the names of `Settings`, without URLs that have a login or a
    query. The rest (`CONDUIT_AIRFLOW_PASSWORD`, `CONDUIT_MASK_SALT`, values that a pipeline file fills in) is mounted
    there as a secret.
    """
    from conduit_tasks.settings import Settings

    names = [f"CONDUIT_{name.upper()}" for name in Settings.model_fields] + ["CONDUIT_BATCH_BYTES"]
    given = {**ELSEWHERE, **{name: os.environ[name] for name in names if name in os.environ}}
    return {name: value for name, value in given.items() if "://" not in value or not any(c in value for c in "@?#")}
