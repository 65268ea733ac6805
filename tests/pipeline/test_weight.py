"""What parsing DAGs and asking for help may load."""

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "pyarrow", "redis", "airflow", "pandas", "httptools", "sqlalchemy")


@pytest.mark.parametrize(
    "code",
    [
        "from conduit_tasks.pipeline import load, explain; "
        "r = load.load_file('include/pipelines/tiny.yaml'); assert r.pipelines, r.findings; "
        "explain.explain_text(r.pipelines[0], connectors=False); explain.mermaid(r.pipelines[0])",
        "from typer.testing import CliRunner; from conduit_tasks.cli.main import app; "
        "r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0 and 'validate' in r.output, r.output",
    ],
)
def test_reading_a_file_and_printing_help_load_nothing_heavy(code: str, request: pytest.FixtureRequest) -> None:
    check = f"{code}; import sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=request.config.rootpath, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr
