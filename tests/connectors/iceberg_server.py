"""A real REST catalog of Iceberg: the project's own server of its test fixtures, over a catalog in SQLite."""

from __future__ import annotations

import os
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.kafka_server import UNVERIFIED
from conduit_tasks.stack.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".conduit" / "iceberg" / "jars"
PATIENCE = 120.0
"""Seconds that a start may take."""


class IcebergServer:
    """Serves the tables of a folder on a port of the loopback, until `stop`."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([str(ROOT / "scripts" / "jars.sh"), "iceberg"], check=True)
        self.folder, self.port = folder, free_port()
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> IcebergServer:
        pyspark = find_spec("pyspark")
        assert pyspark is not None
        assert pyspark.origin is not None
        hadoop = sorted(Path(pyspark.origin).parent.glob("jars/hadoop-client-*.jar"))
        environment = {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_WAREHOUSE": (self.folder / "warehouse").as_uri(),
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/catalog.db",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        }
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else Path("java")
        command = [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *UNVERIFIED]
        command += ["-cp", ":".join([f"{JARS}/*", *map(str, hadoop)]), "org.apache.iceberg.rest.RESTCatalogServer"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the catalog did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.uri}/v1/config", timeout=5):
                return True
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
