#!/usr/bin/env python3
"""Asks whether a locked dependency has a known vulnerability: `python scripts/audit.py [REQUIREMENTS]`.

Exit 0: none, or nobody answers (said, for a build without that network must not fail); 1: some, each named.
What cannot be fixed yet is let through by `AUDIT_IGNORE`: identifiers, comma-separated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

KNOWN = "jinja2==2.10"
"""A release with vulnerabilities that every database knows: one that does not name it is not answering."""


def found(requirements: str) -> dict[str, list[str]] | None:
    """Package and version → identifiers. None where the database cannot be read."""
    command = [sys.executable, "-m", "pip_audit", "-r", requirements, "--no-deps", "--disable-pip", "-f", "json"]
    done = subprocess.run([*command, "--progress-spinner=off"], capture_output=True, text=True, check=False)
    try:
        told = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return {f"{d['name']} {d['version']}": [v["id"] for v in d["vulns"]] for d in told if d.get("vulns")}


def main(requirements: str = "requirements.txt") -> int:
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "known.txt")
        known.write_text(KNOWN + "\n")
        if not found(str(known)):
            print("audit: the database of vulnerabilities does not answer here; nothing was looked up")
            return 0
    ignored = set(os.environ.get("AUDIT_IGNORE", "").split(","))
    vulnerable = found(requirements)
    if vulnerable is None:
        print(f"audit: {requirements} could not be looked up", file=sys.stderr)
        return 1
    left = {name: ids for name, all_ids in vulnerable.items() if (ids := [i for i in all_ids if i not in ignored])}
    for name, ids in left.items():
        print(f"audit: {name} has known vulnerabilities: {', '.join(ids)}; raise it in {requirements}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
