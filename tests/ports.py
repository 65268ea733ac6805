"""Ports for servers that are told theirs before they begin."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 12_000
"""Of those that are tried."""
_dice = random.SystemRandom()
"""Not the tests' own, which draws the same in every worker."""


def free_port(beside: int = 0) -> int:
    """One at which nobody listens, nor at the one so far `beside` it. The kernel gives it to nobody who asks for any:
    it is free still when the server begins, some seconds later."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # Where nearly all of them are the kernel's to give, so is this one.
    last = given - beside if given > 2 * FIRST else 50_000
    while True:
        port = _dice.randrange(FIRST, last)
        if _free(port) and (not beside or _free(port + beside)):
            return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
