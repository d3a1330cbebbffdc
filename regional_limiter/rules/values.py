"""What a check's attributes are to conditions: a text in a normal form, an address, a number.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from regional_limiter.model.rule import NormalForm
from regional_limiter.rules.normal import normalised

View = str | tuple[str, tuple[NormalForm, ...]]
"""How a rule looks at an attribute: by its name, or by (name, normal forms)."""

_NUMBER = re.compile(r"[-+]?[0-9]{1,40}(?:\.[0-9]{1,40})?", re.ASCII)


def name_of(view: View) -> str:
    return view if isinstance(view, str) else view[0]


def number_of(text: str) -> Decimal | None:
    """The number that ``text`` writes: digits, a decimal point, a sign; nothing else, no exponent."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def address_bits(text: str) -> str | None:
    """An address as the digit of its family and its bits, so that a network is a prefix of its addresses.

    An IPv4-mapped IPv6 address is the IPv4 address.  None for what is no address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return f"6{int(address):0128b}"
        address = address.ipv4_mapped
    return f"4{int(address):032b}"


def network_bits(network: IPv4Network | IPv6Network) -> str:
    """The beginning that the bits of all addresses of ``network`` share."""
    bits = f"{network.version}{int(network.network_address):0{network.max_prefixlen}b}"
    return bits[: 1 + network.prefixlen]


class Seen:
    """One check's attributes; what a view of them comes to is worked out once, however many rules ask."""

    __slots__ = ("_addresses", "_numbers", "_texts", "attributes")

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self.attributes = attributes
        self._texts: dict[View, str | None] = {}
        self._addresses: dict[View, str | None] = {}
        self._numbers: dict[View, Decimal | None] = {}

    def text(self, view: View) -> str | None:
        """None: the check does not have the attribute."""
        if isinstance(view, str):
            return self.attributes.get(view)
        if view not in self._texts:
            value = self.attributes.get(view[0])
            self._texts[view] = None if value is None else normalised(value, view[1])
        return self._texts[view]

    def address(self, view: View) -> str | None:
        """The bits of the address; None where there is none."""
        if view not in self._addresses:
            value = self.text(view)
            self._addresses[view] = None if value is None else address_bits(value)
        return self._addresses[view]

    def number(self, view: View) -> Decimal | None:
        if view not in self._numbers:
            value = self.text(view)
            self._numbers[view] = None if value is None else number_of(value)
        return self._numbers[view]
