"""How a driver is started: what is passed, and that the class-data archive is used where it fits and only there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.spark import cds
from conduit_tasks.spark.submit import launch, read_defaults

APPLICATION = """\
import json, sys
from pyspark import SparkContext
sc = SparkContext.getOrCreate()
flags = sc._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
total = sc.parallelize(range(4), 2).map(lambda n: n + 1).sum()
path = sc.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).first()
said = {"total": total, "flags": list(flags), "ui": sc.uiWebUrl, "python": sys.executable, "workers": path}
print(json.dumps(said))
sc.stop()
"""


@pytest.fixture(scope="module")
def archived_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a class-data archive, built for real, in the folder that tests share."""
    home = tmp_path_factory.mktemp("archived")
    assert cds.ensure(home, timeout=500) is not None
    return home


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that has no archive."""
    monkeypatch.delenv("CONDUIT_CLASS_DATA")
    return tmp_path


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_CONF_DIR", "SPARK_DRIVER_MEMORY"):
        monkeypatch.delenv(name, raising=False)


def run(home: Path, tmp_path: Path, **conf: str) -> dict[str, object]:
    """Submits a small real application the way the operator does; returns what it said."""
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    start = launch(home, "local[1]", None, conf)
    options = [word for key, value in start.conf.items() for word in ("--conf", f"{key}={value}")]
    command = [*(start.command or ["spark-submit"]), "--master", "local[1]", *options, str(application)]
    done = subprocess.run(command, env={**os.environ, **start.env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " INFO " not in done.stderr
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.mark.slow
def test_a_driver_starts_from_the_archive_without_launcher(archived_home: Path, tmp_path: Path) -> None:
    said = run(archived_home, tmp_path, **{"spark.driver.memory": "600m"})

    flags = said["flags"]
    assert isinstance(flags, list)
    assert said["total"] == 10
    assert any(flag.startswith("-XX:SharedArchiveFile=") for flag in flags)
    assert "-Xmx600m" in flags
    assert (said["ui"], said["python"]) == (None, sys.executable)
    assert ".zip" not in str(said["workers"]), "each daemon compiles PySpark again"


@pytest.mark.slow
def test_the_jvm_takes_the_archive(archived_home: Path) -> None:
    """`-Xshare:on` makes it an error not to: the class path at start is the one of the archive."""
    start = launch(archived_home, "local[1]", None)
    assert start.command is not None

    command = [*start.command[:-1], "-Xshare:on", cds.SUBMIT_CLASS, "--version"]
    done = subprocess.run(command, env={**os.environ, **start.env}, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert f"version {version('pyspark')}" in done.stderr


@pytest.mark.parametrize("deep", [1, 20], ids=["short", "long"])
def test_python_workers_on_this_machine_are_met_at_sockets_that_only_this_user_reaches(
    tmp_path: Path, deep: int
) -> None:
    home = tmp_path.joinpath(*["a folder"] * deep)
    conf = launch(home, "local[*]", None).conf
    assert conf["spark.python.unix.domain.socket.enabled"] == "true"
    folder = Path(conf["spark.python.unix.domain.socket.dir"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(os.fsencode(folder / f".{uuid.uuid4()}.sock")) <= 107
    # Elsewhere they are on other machines, whose folders nobody knows here
    for master in ("spark://elsewhere:7077", "yarn", "k8s://https://elsewhere"):
        assert not [key for key in launch(home, master, None).conf if "socket" in key]


@pytest.mark.slow
def test_without_an_archive_the_ordinary_submit_is_used(alone: Path) -> None:
    assert launch(alone, "local[*]", None).command is None

    said = run(alone, alone)

    assert said["total"] == 10
    assert "-XX:+UseSerialGC" in said["flags"]  # type: ignore[operator]


def test_a_damaged_archive_is_not_used(alone: Path) -> None:
    java = cds.java_binary()
    assert java is not None
    conf_dir = cds.empty_conf_dir(alone)
    archive = cds.folder(alone) / f"{cds.fingerprint(java, cds.spark_home(), conf_dir)}.jsa"
    archive.write_bytes(b"12345")
    archive.with_suffix(".json").write_text('{"command": ["java"], "size": 5}')
    assert cds.find(alone) == cds.Archive(archive, ("java",), conf_dir)

    archive.write_bytes(b"1234")

    assert cds.find(alone) is None
    assert launch(alone, "local[*]", None).command is None


def test_the_newest_archives_of_a_folder_are_kept(tmp_path: Path) -> None:
    for age in range(5):
        for suffix in (".json", ".jsa"):
            (tmp_path / f"{age}{suffix}").write_text("x")
            os.utime(tmp_path / f"{age}{suffix}", (1_000 - age, 1_000 - age))

    cds.prune(tmp_path)

    assert sorted(f.name for f in tmp_path.iterdir()) == ["0.jsa", "0.json", "1.jsa", "1.json", "2.jsa", "2.json"]


def test_homes_that_share_a_folder_build_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_CLASS_DATA", str(tmp_path / "shared"))
    built: list[Path] = []

    def build(home: Path, _: float) -> None:
        built.append(home)
        time.sleep(0.2)
        java = cds.java_binary()
        assert java is not None
        conf_dir = cds.empty_conf_dir(home)
        archive = cds.folder(home) / f"{cds.fingerprint(java, cds.spark_home(), conf_dir)}.jsa"
        archive.write_bytes(b"12345")
        archive.with_suffix(".json").write_text('{"command": ["java"], "size": 5}')

    monkeypatch.setattr(cds, "build", build)
    homes = [tmp_path / "one", tmp_path / "two"]
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(cds.ensure, homes)

    assert first is not None
    assert first == second
    assert len(built) == 1


def test_another_jdk_or_other_jars_need_another_archive(archived_home: Path, tmp_path: Path) -> None:
    java, spark = cds.java_binary(), cds.spark_home()
    assert java is not None
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "one.jar").write_text("1")
    first = cds.fingerprint(java, tmp_path, tmp_path)
    (jars / "two.jar").write_text("2")
    cds.fingerprint.cache_clear()

    assert len({first, cds.fingerprint(java, tmp_path, tmp_path), cds.fingerprint(java, spark, tmp_path)}) == 3


def test_where_it_cannot_be_built_drivers_start_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))

    assert cds.ensure(tmp_path) is None

    assert "without" in caplog.text


@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_a_class_path_of_the_users_goes_through_the_launcher(
    archived_home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/etc/hadoop")

    assert launch(archived_home, "local[*]", None).command is None


@pytest.mark.parametrize(
    ("master", "mode"), [("yarn", None), ("k8s://https://k8s:443", "cluster"), ("spark://master:7077", "cluster")]
)
@pytest.mark.parametrize(
    "redis",
    [
        "redis://user:secret@redis:6379/0",
        "redis://redis:6379/0?password=secret",
        "rediss://secret@redis:6379",
        "redis+sentinel://a,b/service?sentinel_password=secret",
        "redis://user:sec%zz[secret@redis",
    ],
)
def test_drivers_elsewhere_keep_what_their_connection_says_and_are_told_no_secret(
    archived_home: Path, monkeypatch: pytest.MonkeyPatch, master: str, mode: str | None, redis: str
) -> None:
    monkeypatch.setenv("CONDUIT_SPOOL", "s3://bucket/spool")
    monkeypatch.setenv("CONDUIT_REDIS_URL", redis)
    for name in ("AIRFLOW_PASSWORD", "AIRFLOW_TOKEN", "AIRFLOW_USER", "MASK_SALT", "OF_THE_USERS_OWN", "GATEWAY_TOKEN"):
        monkeypatch.setenv(f"CONDUIT_{name}", "secret")

    start = launch(archived_home, master, mode, {"spark.executor.memory": "2g"})

    assert start.command is None
    assert start.conf == {"spark.executor.memory": "2g"}
    # These become visible options there, so a password is left to mounted secrets.
    assert start.env["CONDUIT_SPOOL"] == "s3://bucket/spool"
    assert "secret" not in str(start.env)


@pytest.mark.parametrize(("master", "said"), [("local[*]", None), ("spark://m:7077", "0"), ("yarn", "0")])
def test_small_work_stays_with_executors_on_other_machines_unless_the_environment_says_otherwise(
    archived_home: Path, monkeypatch: pytest.MonkeyPatch, master: str, said: str | None
) -> None:
    monkeypatch.delenv("CONDUIT_SMALL_RECORDS", raising=False)
    assert launch(archived_home, master, "client").env.get("CONDUIT_SMALL_RECORDS") == said
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "500")
    assert launch(archived_home, master, "client").env.get("CONDUIT_SMALL_RECORDS") == (said and "500")


def test_a_standalone_client_is_a_jvm_of_ours_too(archived_home: Path) -> None:
    start = launch(archived_home, "spark://master:7077", "client")

    assert start.command is not None
    assert "spark.driver.host" not in start.conf


def test_long_sql_in_the_jvm_gets_the_second_compiler(archived_home: Path) -> None:
    quick, thorough = (launch(archived_home, "local[*]", None, quick_jit=quick) for quick in (True, False))

    assert "-XX:TieredStopAtLevel=1" in (quick.command or ())
    assert "-XX:TieredStopAtLevel=1" not in (thorough.command or ())


def test_the_users_spark_defaults_win_over_ours_and_lose_to_the_tasks(archived_home: Path) -> None:
    defaults = archived_home / "include" / "spark-defaults.conf"
    defaults.parent.mkdir(exist_ok=True)
    defaults.write_text(
        "# ours\nspark.ui.enabled true\nspark.a=1\nspark.b   two words \nspark.driver.extraJavaOptions -Da=b\n"
    )

    start = launch(archived_home, "local[*]", None, {"spark.a": "2"})
    defaults.unlink()

    assert (start.conf["spark.ui.enabled"], start.conf["spark.a"], start.conf["spark.b"]) == ("true", "2", "two words")
    assert "-Da=b" in (start.command or ())


def test_a_bad_line_of_spark_defaults_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text("spark.a 1\nui.enabled false\n")

    with pytest.raises(ConfigError, match=r"spark-defaults\.conf:2"):
        read_defaults(path)
