"""Keeps requests away from link-local and cloud metadata addresses, where machines keep their credentials.

A name is checked when it is resolved for a connection, not only when the file is read: a name can change its address.
"""

from __future__ import annotations

import ipaddress

from conduit_tasks.errors import ConfigError

METADATA = frozenset({"fd00:ec2::254", "100.100.100.200"})
"""Metadata services outside the link-local ranges (Amazon over IPv6, Alibaba)."""
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog", "metadata"})

ADVICE = "is a link-local or metadata address; set allow-link-local: true if you mean it"


def forbidden(address: str) -> bool:
    """Whether this IP address is link-local or a metadata service; IPv4 within IPv6 is looked into."""
    try:
        ip = ipaddress.ip_address(address.split("%", 1)[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_link_local or str(ip) in METADATA


def check_host(host: str, where: str) -> None:
    """Raises ConfigError where the host is written as such an address, or is a metadata service's name."""
    if forbidden(host) or host.rstrip(".").lower() in METADATA_NAMES:
        raise ConfigError(f"{where}: {host} {ADVICE}")


def check_address(address: str, host: str) -> None:
    """Raises OSError where a host's name led to such an address: asked when it is connected to, every time."""
    if forbidden(address):
        raise OSError(f"{host} {ADVICE}")
