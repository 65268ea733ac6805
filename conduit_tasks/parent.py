"""Tie of a child process to its parent: on Linux the kernel kills the child when its parent ends, however that ends."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent ends, however that ends: nobody is left to stop it, or to hear
    its answer. Linux only; elsewhere it does nothing. To be called early, by the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
