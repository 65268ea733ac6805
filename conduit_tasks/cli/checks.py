"""Checks of an installation for `conduit doctor`: what each looks at, what it found, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from conduit_tasks.errors import ConduitError
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.connections import Connection
    from conduit_tasks.spark.remote import Address

JAVA = 17
NO_POOL = "default_pool"
ANSWER = 30
"""Seconds for a program that only tells its version."""


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at. `state`: good; wrong: pipelines cannot run, or lose something; doubtful: it works,
    perhaps not everywhere; unknown: it could not be looked at from here. `todo`: what to do, unless it is good."""

    what: str
    state: Literal["good", "wrong", "doubtful", "unknown"]
    found: str
    todo: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def everything(*, executors: bool) -> Iterator[Checked]:
    """Makes all checks, one after the other; one that raises is reported as wrong. `executors`: also those that start a
    Spark job."""
    from conduit_tasks.connections import find_airflow

    with _aside():
        find_airflow()
    checks: list[Callable[[], Iterator[Checked]]] = [
        versions,
        plugin,
        dag_files,
        redis,
        folders,
        pipelines,
        spark,
        pool,
    ]
    for check in [*checks, *([in_executors] if executors else [])]:
        found: list[Checked] = []
        with _aside():
            try:
                found.extend(check())
            except ConduitError as error:
                found.append(Checked(check.__name__, "wrong", str(error), "see the message"))
            except Exception as error:  # noqa: BLE001 - the other checks go on
                said = f"{type(error).__name__}: {error}"
                found.append(Checked(check.__name__, "unknown", said, "see the message"))
        yield from found


def _aside() -> redirect_stdout[Any]:
    """A block whose output goes to stderr: Airflow 3.1 and 3.2 log to stdout, where the report is."""
    return redirect_stdout(sys.stderr)


def versions() -> Iterator[Checked]:
    """Python, and the packages whose versions have to fit."""
    from packaging.requirements import Requirement

    found = ".".join(map(str, sys.version_info[:3]))
    yield Checked("Python", "good", f"{found} at {sys.executable}")
    for line in requires("conduit-tasks") or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        if not wanted.name.startswith(("apache-airflow", "pyspark", "redis")):
            continue
        try:
            have = version(wanted.name)
        except PackageNotFoundError:
            yield Checked(wanted.name, "wrong", "not installed", f"pip install '{wanted}'")
            continue
        fits = wanted.specifier.contains(have, prereleases=True)
        todo = "" if fits else f"pip install '{wanted}'"
        yield Checked(wanted.name, "good" if fits else "wrong", have, todo)
    yield from _one_pyspark()


def _one_pyspark() -> Iterator[Checked]:
    """`pyspark` and `pyspark-client` put files into one folder, so they must be the same: what was installed last is
    there."""
    import pyspark

    package = version("pyspark")
    try:
        client = version("pyspark-client")
    except PackageNotFoundError:
        client = package
    again = f"pip install --force-reinstall --no-deps pyspark=={package} pyspark-client=={package}"
    if client != package:
        yield Checked("pyspark", "wrong", f"{package}, and pyspark-client is {client}", again)
    elif package != pyspark.__version__:
        yield Checked("pyspark", "wrong", f"{package}, whose files are those of {pyspark.__version__}", again)


def plugin() -> Iterator[Checked]:
    """Airflow loads the plugin by its entry point: pages, API, timetables, wake-ups."""
    found = [point for point in entry_points(group="airflow.plugins") if point.value.startswith("conduit_tasks.")]
    if not found:
        todo = "install the package with pip (pip install conduit-tasks), do not put its folder on PYTHONPATH"
        yield Checked("plugin", "wrong", "Airflow does not find it: no entry point", todo)
        return
    found[0].load()
    yield Checked("plugin", "good", found[0].value)


def dag_files() -> Iterator[Checked]:
    """A file in Airflow's folder of DAGs that builds ours."""
    folders = [settings().home / "dags"]
    if conf := _airflow_conf():
        folders.insert(0, Path(conf.get("core", "dags_folder")))
    for folder in folders:
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else ():
            if "conduit_tasks.airflow" in file.read_text(errors="replace"):
                yield Checked("DAG files", "good", str(file))
                return
    todo = (
        "`conduit init` writes dags/conduit_dags.py and dags/conduit_errors.py: copy them to Airflow's folder of DAGs"
    )
    yield Checked(
        "DAG files", "doubtful", f"none of ours in {folders[0]} (a DAG bundle from git is not seen here)", todo
    )


def redis() -> Iterator[Checked]:
    """The broker's server: reached, durable, with room."""
    from conduit_tasks.redis_client.connection import address, check_durability, connect, memory

    config = settings()
    where = address(config.redis_url)
    try:
        client = connect(config)
    except ConduitError as error:
        yield Checked("Redis", "wrong", str(error), "set CONDUIT_REDIS_URL for all of Airflow's components and workers")
        return
    with closing(client):
        report = check_durability(client, "unsafe")
        used, most = memory(client, "conduit")
    unsafe = config.redis_durability == "unsafe"
    for problem in report.problems:
        yield Checked("Redis durability", "doubtful" if unsafe else "wrong", f"{where}: {problem.partition(':')[0]}",
                      problem.partition(": ")[2] or "`conduit broker check` says more")  # fmt: skip
    if not report.problems:
        yield Checked("Redis", "good", f"{where}, {report.version}, appendfsync {report.append_fsync or 'declared'}")
    if most and used > config.redis_share * most:
        yield Checked("Redis memory", "wrong", f"{used:,} of {most:,} bytes are used", "raise maxmemory")
    if where.startswith("unix://") or "127.0.0.1" in where or "localhost" in where:
        todo = "right where everything runs here; else set CONDUIT_REDIS_URL to an address of the network"
        yield Checked("Redis address", "doubtful", f"{where} is reached from this machine only", todo)


def folders() -> Iterator[Checked]:
    """The project's folders, and whether spool and dead letters can be written."""
    config = settings()
    home = config.home.resolve()
    if not home.is_dir():
        yield Checked("home", "wrong", f"{home} is no folder", "set CONDUIT_HOME for all of Airflow's components")
        return
    given = "CONDUIT_HOME" in os.environ
    todo = "" if given else "taken from the working folder: set CONDUIT_HOME for all of Airflow's components"
    yield Checked("home", "good" if given else "doubtful", str(home), todo)
    for name, root in (("spool", config.path(config.spool)), ("dead letters", config.path(config.dead_letters))):
        try:
            written(root)
        except Exception as error:  # noqa: BLE001 - whatever the store says
            todo = f"make it writable for this user, or set CONDUIT_{name.upper().replace(' ', '_')}"
            yield Checked(name, "wrong", f"{root} cannot be written: {error}", todo)
        else:
            yield Checked(name, "good", root)


def written(root: str) -> None:
    """Writes a file in a store, reads it and removes it. Raises what the store raises."""
    from conduit_tasks.spool.store import open_store, put

    store, name, data = open_store(root), f".doctor-{uuid.uuid4().hex}", uuid.uuid4().bytes
    put(store, name, data)
    try:
        with store.open(name) as file:
            found = file.read()
        if found != data:
            raise OSError("what is read is not what was written")
    finally:
        store.delete(name)


def pipelines() -> Iterator[Checked]:
    """The pipeline files, and the connections that they name."""
    from conduit_tasks.pipeline.load import load_folder

    folder = settings().path(settings().pipelines)
    found = load_folder(folder, plugins=True)
    if found.errors:
        first = str(found.errors[0])
        yield Checked(
            "pipelines", "wrong", f"{len(found.errors)} errors, the first: {first}", "`conduit validate` shows all"
        )
    elif not found.pipelines:
        yield Checked("pipelines", "doubtful", f"none in {folder}", "write one, or set CONDUIT_PIPELINES")
    else:
        yield Checked("pipelines", "good", f"{len(found.pipelines)} in {folder}")


def spark() -> Iterator[Checked]:
    """The Spark connection, what it names, and whether the spool is where its executors are."""
    from conduit_tasks import connections

    name = "spark_default"
    try:
        found = connections.lookup(name)
    except connections.NotAsked as error:
        yield Checked("Spark connection", "unknown", str(error), "call this where Airflow's settings are")
        return
    except ConduitError as error:
        todo = f"airflow connections add {name} --conn-type spark --conn-host 'local[*]'"
        yield Checked("Spark connection", "wrong", str(error), todo)
        return
    address = connect_server(found)
    master = str(address) if address else (f"{found.host}:{found.port}" if found.port else found.host)
    if address is not None and not address.listens():
        yield Checked("Spark connection", "wrong", f"the Connect server at {address} does not answer", "start it")
    else:
        yield Checked("Spark connection", "good", f"{name}: {master}")
    if address is None:
        yield from _java()
    here = master.startswith("local") or (address is not None and address.host in ("localhost", "127.0.0.1"))
    config = settings()
    if not here and "://" not in config.spool:
        said = f"{config.path(config.spool)} is a folder, executors are at {master}"
        todo = (
            "it must be the same folder on every machine (NFS and the like), or a store such as s3://; "
            "`conduit doctor --executors` tries it"
        )
        yield Checked("spool of a cluster", "doubtful", said, todo)


def connect_server(found: Connection) -> Address | None:
    """Returns the Connect server that the Spark connection names; None if it names none."""
    from conduit_tasks.airflow.hook import connect_address

    as_of_airflow = SimpleNamespace(**asdict(found), conn_type=found.type, extra_dejson=found.extra)
    return connect_address(as_of_airflow)


def _java() -> Iterator[Checked]:
    java = os.environ.get("JAVA_HOME", "")
    program = f"{java}/bin/java" if java else shutil.which("java") or ""
    todo = f"install Java {JAVA} or newer, or name a Spark Connect server in the connection"
    if not program or not Path(program).exists():
        yield Checked("Java", "wrong", "there is none", todo)
        return
    said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=ANSWER, check=False).stderr  # noqa: S603
    number = said.partition('"')[2].partition(".")[0].partition('"')[0]
    good = number.isdigit() and int(number) >= JAVA
    yield Checked("Java", "good" if good else "wrong", number or said[:80], "" if good else todo)


def pool() -> Iterator[Checked]:
    """The pool that bounds the Spark drivers that run at once."""
    name = os.environ.get("CONDUIT_SPARK_POOL", NO_POOL)
    if _airflow_conf() is None:
        yield Checked("pool", "unknown", "Airflow cannot be loaded here", "call this where Airflow is installed")
        return
    from airflow.models.pool import Pool

    try:
        found = Pool.get_pool(name)
    except Exception as error:  # noqa: BLE001 - no database, or none of this version
        said = (str(error).splitlines() or [""])[0]
        yield Checked("pool", "unknown", f"Airflow's database cannot be asked: {said[:120]}",
                      "call this where Airflow's settings are (AIRFLOW_HOME)")  # fmt: skip
        return
    if found is None:
        todo = f"airflow pools set {name} {max(2, os.cpu_count() or 2)} 'Spark drivers at once'"
        yield Checked("pool", "wrong", f"CONDUIT_SPARK_POOL is {name}, which does not exist", todo)
    elif name == NO_POOL:
        todo = "make a pool with as many slots as drivers fit (1 GiB each), and set CONDUIT_SPARK_POOL"
        yield Checked(
            "pool", "doubtful", f"CONDUIT_SPARK_POOL is not set: {NO_POOL}, {found.slots} drivers at once", todo
        )
    else:
        yield Checked("pool", "good", f"{name}, {found.slots} slots")


def in_executors() -> Iterator[Checked]:
    """A Spark job: executors that find the package, Redis and the spool."""
    from conduit_tasks import connections
    from conduit_tasks.cli.executors import differences, look

    found = connections.lookup("spark_default")
    address = connect_server(found)
    master = f"{found.host}:{found.port}" if found.port else found.host
    answers = look(address, master or "local[*]")
    hosts = ", ".join(sorted({str(answer["host"]) for answer in answers}))
    wrong = [*differences(answers)]
    yield from (Checked("executors", "wrong", said, todo) for said, todo in wrong)
    if not wrong:
        yield Checked("executors", "good", f"on {hosts}: same versions, they reach Redis and write the spool")


def _airflow_conf() -> Any:
    try:
        from airflow.configuration import conf
    except Exception:  # noqa: BLE001 - not installed, or its settings are broken
        return None
    return conf
