"""Compiles the messages of the connector protocol: `pip install grpcio-tools`, then run this.

The result is a descriptor set, not code: it works with any version of the library `protobuf`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "conduit_tasks" / "connectors" / "standalone" / "proto"


def main() -> int:
    """Writes `protocol.binpb` beside the `.proto` files."""
    files = sorted(path.name for path in FOLDER.glob("*.proto"))
    out = f"--descriptor_set_out={FOLDER / 'protocol.binpb'}"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", "--include_imports", out, *files]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own words


if __name__ == "__main__":
    sys.exit(main())
