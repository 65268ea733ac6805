"""The line of a document's section that names the code behind it."""

from __future__ import annotations

from collections.abc import Mapping


def code_line(files: Mapping[str, str], up: str = "../") -> str:
    """Returns the line. `files`: file below `conduit_tasks/` → what of the section it decides; `up`: from the page's
    folder to the repository."""
    links = (f"[`{file}`]({up}conduit_tasks/{file}) {what}" for file, what in files.items())
    return f"*Code: {'; '.join(links)}.*"
