"""Whose request it is: what a header says is believed only as far as trusted proxies vouch for it."""

from __future__ import annotations

import ipaddress

import pytest
from apportion.addresses import HOPS_MOST, address_of, caller_of, grouped, networks_of
from hypothesis import given
from hypothesis import strategies as st

TRUSTED = networks_of(["10.0.0.0/8", "127.0.0.1", "2001:db8:aaaa::/48"])

CASES = [
    # peer, the header's lines, the caller
    ("203.0.113.9", ["192.0.2.1"], "203.0.113.9"),  # the peer is not trusted: the header is a stranger's
    ("127.0.0.1", [], "127.0.0.1"),
    ("127.0.0.1", ["192.0.2.1"], "192.0.2.1"),
    ("127.0.0.1", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),  # the right-most that is not trusted
    ("127.0.0.1", ["6.6.6.6", "192.0.2.1, 10.1.1.1"], "192.0.2.1"),  # in several lines
    ("127.0.0.1", ["10.3.3.3, 10.2.2.2"], "10.3.3.3"),  # all trusted: the first
    ("127.0.0.1", ["6.6.6.6, unknown, 10.2.2.2"], "10.2.2.2"),  # nobody vouches for what is left of that
    ("127.0.0.1", ["garbage"], "127.0.0.1"),
    ("127.0.0.1", [""], "127.0.0.1"),
    ("127.0.0.1", ["192.0.2.1:4711"], "192.0.2.1"),
    ("127.0.0.1", ["[2001:db8::7]:443"], "2001:db8::7"),
    ("127.0.0.1", ['"[2001:db8::7]"'], "2001:db8::7"),
    ("::ffff:127.0.0.1", ["::ffff:192.0.2.1"], "192.0.2.1"),  # an IPv4-mapped address is the IPv4 address
    ("2001:db8:aaaa::1", ["2001:db8:bbbb::1"], "2001:db8:bbbb::1"),
    ("fe80::1%eth0", ["192.0.2.1"], "fe80::1"),
    (None, ["192.0.2.1"], None),
    ("a path", ["192.0.2.1"], None),
]


@pytest.mark.parametrize(("peer", "forwarded", "caller"), CASES)
def test_the_right_most_address_that_is_not_trusted_is_the_callers(
    peer: str | None, forwarded: list[str], caller: str | None
) -> None:
    found = caller_of(peer, forwarded, TRUSTED)
    assert (None if found is None else str(found)) == caller


@given(st.lists(st.text(max_size=40), max_size=5))
def test_nothing_that_a_stranger_writes_left_of_an_untrusted_address_matters(lines: list[str]) -> None:
    assert str(caller_of("127.0.0.1", [*lines, "192.0.2.1"], TRUSTED)) == "192.0.2.1"


def test_of_a_list_without_end_the_last_hops_count() -> None:
    forwarded = ",".join(["6.6.6.6", *["10.0.0.1"] * 10_000])
    assert str(caller_of("127.0.0.1", [forwarded], TRUSTED)) == "10.0.0.1"
    nearly = ",".join(["6.6.6.6", *["10.0.0.1"] * (HOPS_MOST - 1)])
    assert str(caller_of("127.0.0.1", [nearly], TRUSTED)) == "6.6.6.6"


@given(st.ip_addresses())
def test_limits_go_by_the_64_of_an_ipv6_address_and_by_all_of_an_ipv4_one(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    text = grouped(address)
    if address.version == 4:
        assert text == str(address)
    else:
        network = ipaddress.ip_network(text)
        assert network.prefixlen == 64
        assert address in network


@given(st.text(max_size=60))
def test_no_text_breaks_the_reading(text: str) -> None:
    found = address_of(text)
    assert found is None or address_of(str(found)) == found


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"'10\.0\.0\.0/33'"):
        networks_of(["127.0.0.1", "10.0.0.0/33"])
