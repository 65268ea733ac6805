"""Guarantees broken on purpose, each of which `conduit verify` finds."""

from __future__ import annotations

import sys
from itertools import islice

from tests.verify.module_mutants import MODULES
from tests.verify.mutant import Mutant
from tests.verify.script_mutants import SCRIPTS

MUTANTS: list[Mutant] = [*SCRIPTS, *MODULES]
"""Every one is found by `conduit verify`."""


def main(count: int, *names: str) -> None:
    """Prints in how many of its first `count` seeds each is found, by what, and the seconds."""
    import time

    from conduit_tasks.verify.server import cleaned_up
    from conduit_tasks.verify.themes import seeds_of
    from conduit_tasks.verify.workers import verify

    with cleaned_up():
        for mutant in MUTANTS:
            if names and mutant.name not in names:
                continue
            began = time.process_time()
            with mutant.applied():
                seeds = list(islice(seeds_of(mutant.theme), count))
                results = list(verify(seeds, 16, 1))
            found = [r for r in results if not r.ok]
            said = found[0].found.violations[0] if found else "NOT FOUND"
            print(
                f"{mutant.name:40}{len(found):4} of {count}{time.process_time() - began:7.1f} s  {said[:110]}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
