"""Compiles the messages of the connector protocol: `pip install grpcio-tools`, then run this.

The result is a descriptor set, not code: it works with any version of the library `protobuf`.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "conduit_tasks" / "connectors" / "standalone" / "proto"


def main() -> int:
    """Writes `protocol.binpb` beside the `.proto` files."""
    from grpc_tools import protoc

    included = Path(protoc.__file__).parent / "_proto"
    out = FOLDER / "protocol.binpb"
    files = sorted(path.name for path in FOLDER.glob("*.proto"))
    return int(
        protoc.main(
            ["protoc", f"-I{FOLDER}", f"-I{included}", "--include_imports", f"--descriptor_set_out={out}", *files]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
