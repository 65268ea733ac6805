"""Accounts: what came to a step is what its parts say became of it (invariant 10). Nothing is taken for the rest."""

from __future__ import annotations

from conduit_tasks.errors import InvariantBroken


def accounted(node: str, micro_batch: int, came: int, what: str = "records", /, **became: int) -> None:
    """Compares the number of records (or `what`) that came with the numbers of what became of them.

    Raises InvariantBroken with all figures if one is missing or too many.
    """
    if came != sum(became.values()):
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in became.items())
        raise InvariantBroken(
            f"invariant 10: {came} {what} of micro-batch {micro_batch} came to {node}, but of these are {said}; none "
            "of these is sealed, confirmed or acked"
        )
