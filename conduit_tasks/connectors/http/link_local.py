"""Keeps requests away from link-local and cloud metadata addresses, where machines keep their credentials.

An address is checked at each connection, not only when the file is read: a name can change its address. The name is
resolved once, and the connection goes to the address that was checked (`guard`, `client`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from conduit_tasks.errors import ConfigError

METADATA = frozenset(
    {
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle
        "fd00:100::100:200",  # Alibaba
        "fd00:42::42",  # Scaleway
        "fd00:a9fe:a9fe::1",  # Akamai (Linode)
        "fd00:c1::a9fe:a9fe",  # Oracle
        "fd00:ec2::254",  # Amazon: instances
        "fd00:ec2::23",  # Amazon: pods
        "fd20:ce::254",  # Google
    }
)
"""Metadata services outside the link-local ranges."""
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog", "metadata"})

ADVICE = "is a link-local or metadata address; set allow-link-local: true if you mean it"

_EMBEDDED = (
    ("::/96", 12),  # IPv4-compatible (RFC 4291, 2.5.5.1)
    ("::ffff:0:0/96", 12),  # IPv4-mapped
    ("::ffff:0:0:0/96", 12),  # IPv4-translated (RFC 2765)
    ("64:ff9b::/96", 12),  # NAT64 (RFC 6052)
    ("2002::/16", 2),  # 6to4 (RFC 3056)
    ("2001::/32", 4),  # Teredo's server; its client is written inverted (RFC 4380)
)
"""Places of an IPv4 address in an IPv6 one: the network, and the number of the first of its four bytes."""
_NETWORKS = tuple((ipaddress.IPv6Network(network), at) for network, at in _EMBEDDED)
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
"""NAT64 of a site's own (RFC 8215); an address does not show the length of its prefix, /48 to /96."""
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
"""Bytes before the IPv4 address in any network (RFC 5214)."""


def forbidden(address: str) -> bool:
    """Returns whether this IP address is link-local or a metadata service; IPv4 within IPv6 is checked, too."""
    try:
        ip = ipaddress.ip_address(address.split("%", 1)[0])
    except ValueError:
        return False
    inside = _within(ip) if isinstance(ip, ipaddress.IPv6Address) else ()
    return any(each.is_link_local or str(each) in METADATA for each in (ip, *inside))


def _within(ip: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yields the IPv4 addresses that a packet to this one may be forwarded to."""
    raw = ip.packed
    for network, at in _NETWORKS:
        if ip in network:
            yield ipaddress.IPv4Address(raw[at : at + 4])
    if ip.teredo is not None:
        yield ip.teredo[1]
    if raw[8:12] in _ISATAP:
        yield ipaddress.IPv4Address(raw[12:])
    if ip in _LOCAL_NAT64:
        # RFC 6052, 2.2: the eighth byte is left out.
        rest = raw[:8] + raw[9:]
        yield from (ipaddress.IPv4Address(rest[at : at + 4]) for at in (6, 7, 8))
        yield ipaddress.IPv4Address(raw[12:])


def check_host(host: str, where: str) -> None:
    """Raises ConfigError if the host is written as such an address, or is a metadata service's name."""
    if forbidden(host) or host.rstrip(".").lower() in METADATA_NAMES:
        raise ConfigError(f"{where}: {host} {ADVICE}")


def check_address(address: str, host: str) -> None:
    """Raises OSError if a host's name led to such an address. Called at every connection."""
    if forbidden(address):
        raise OSError(f"{host} {ADVICE}")
