"""Whose request it is, by address: what may be believed of the addresses that a request names.  Pure.

A request comes over a connection, and may bring a list of addresses (``X-Forwarded-For``) to which each proxy on
its way has added the one that it was called from.  Anybody can send such a list, so an entry counts only if
everything after it, and the connection's peer, are proxies that are trusted: the right-most address that is not
trusted is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
HOPS_MOST: Final = 64
GROUP_BITS: Final = 64
"""Of an IPv6 address: what one household or host is given, and can change the rest of as it likes."""


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks and single addresses, such as ``10.0.0.0/8``.  Raises ValueError, which names the wrong one."""
    return tuple(map(_network, texts))


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no address and no network: {error}") from None


def address_of(text: str) -> Address | None:
    """The address in ``text``, which may have a port, brackets or a zone; an IPv4-mapped one is IPv4."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def caller_of(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> Address | None:
    """The address that a request came from.

    ``peer``: of the connection.  ``forwarded``: the header's lines as they came, each a list separated by commas.
    What is no address ends the search: the last one that was vouched for is taken.
    """
    found = address_of(peer or "")
    if found is None or not forwarded or not _is_in(found, trusted):
        return found
    # From the right, so that the length of what a stranger wrote on the left costs nothing.
    entries = ",".join(forwarded).rsplit(",", HOPS_MOST)[-HOPS_MOST:]
    for entry in reversed(entries):
        named = address_of(entry)
        if named is None:
            break
        found = named
        if not _is_in(found, trusted):
            break
    return found


def grouped(address: Address) -> str:
    """The text of an address that limits go by: of IPv6 the /64 that it lies in."""
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address.packed, GROUP_BITS), strict=False))
    return str(address)


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
