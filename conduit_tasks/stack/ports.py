"""Free ports of this machine for servers that are told theirs before they begin."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 12_000
"""Lowest port that is tried."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOW = 32_768
"""First port of the kernel's own range, if it does not say."""
_dice = random.SystemRandom()
"""Not the shared generator: processes that begin with the same seed would draw the same ports."""


def free_port(wanted: int = 0, *, beside: int = 0) -> int:
    """Returns `wanted` if it is given and free, otherwise any port at which nobody listens, nor at the one that is
    `beside` so far from it. It lies outside the range from which the kernel gives ports to clients, so it is still free
    when the server begins, some seconds later."""
    if wanted and _free(wanted):
        return wanted
    given = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _LOW
    # If nearly all ports are the kernel's to give, this one is, too.
    last = given - beside if given > 2 * FIRST else 50_000
    while True:
        port = _dice.randrange(FIRST, last)
        if _free(port) and (not beside or _free(port + beside)):
            return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # Airflow's server sets this too; without it a port counts as taken for a minute after every stop.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
