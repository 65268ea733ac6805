"""The dependency audit of `make check`, on a database that answers, knows nothing or is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AUDITOR = """
import json, sys
known = {vulnerable}
lines = open(sys.argv[sys.argv.index("-r") + 1]).read().split()
names = [line.split("==") for line in lines]
print(json.dumps({{"dependencies": [
    {{"name": n, "version": v, "vulns": [{{"id": i}} for i in known.get(n, [])]}} for n, v in names]}}))
"""


@pytest.mark.parametrize(
    ("vulnerable", "ignored", "code", "said"),
    [
        ({"jinja2": ["V-1"]}, "", 0, ""),
        ({"jinja2": ["V-1"], "lib": ["V-2", "V-3"]}, "", 1, "lib 1.0 has known vulnerabilities: V-2, V-3"),
        ({"jinja2": ["V-1"], "lib": ["V-2", "V-3"]}, "V-2", 1, "lib 1.0 has known vulnerabilities: V-3;"),
        ({"jinja2": ["V-1"], "lib": ["V-2"]}, "V-9,V-2", 0, ""),
        ({}, "", 0, "does not answer"),
    ],
)
def test_a_locked_package_with_a_known_vulnerability_fails_the_check(
    tmp_path: Path, vulnerable: dict[str, list[str]], ignored: str, code: int, said: str
) -> None:
    (tmp_path / "pip_audit.py").write_text(AUDITOR.format(vulnerable=json.dumps(vulnerable)))
    (tmp_path / "locked.txt").write_text("other==2.0\nlib==1.0\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "audit.py"), "locked.txt"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "AUDIT_IGNORE": ignored},
    )
    assert done.returncode == code
    assert said in done.stdout + done.stderr
