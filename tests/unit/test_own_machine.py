"""Without a token, what another site makes a browser ask is not answered."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from services.own_machine import is_for_own_machine, why_not_own
from services.settings import DashboardSettings

HERE = "127.0.0.1:8190"


@pytest.mark.parametrize(
    ("method", "headers", "answered"),
    [
        ("POST", {"host": HERE}, True),  # curl and the commands
        ("POST", {"host": "LocalHost:8190"}, True),
        ("POST", {"host": "[::1]:8190"}, True),
        ("POST", {"host": "localhost"}, True),
        ("GET", {"host": "evil.example:8190"}, False),
        ("GET", {"host": "127.0.0.1.evil.example"}, False),
        ("GET", {}, False),
        ("POST", {"host": HERE, "sec-fetch-site": "same-origin", "origin": f"http://{HERE}"}, True),
        ("GET", {"host": HERE, "sec-fetch-site": "none"}, True),
        ("POST", {"host": HERE, "sec-fetch-site": "cross-site"}, False),
        ("POST", {"host": HERE, "sec-fetch-site": "same-site"}, False),  # another port of this machine
        ("GET", {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        (
            "GET",
            {
                "host": HERE,
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "document",
            },
            True,
        ),
        (
            "POST",  # a form
            {
                "host": HERE,
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "document",
            },
            False,
        ),
        ("POST", {"host": HERE, "origin": "https://evil.example"}, False),
        ("POST", {"host": HERE, "origin": "null"}, False),
        ("POST", {"host": HERE, "origin": f"http://{HERE}"}, True),
    ],
)
def test_only_this_machines_own_requests_are_answered(method: str, headers: dict[str, str], answered: bool) -> None:
    assert (why_not_own(method, headers, by_name=True) is None) is answered


def test_where_the_settings_say_that_others_are_kept_out_any_name_will_do_but_no_other_site() -> None:
    named = {"host": "rates.example"}
    assert why_not_own("POST", named, by_name=False) is None
    assert why_not_own("POST", {**named, "sec-fetch-site": "cross-site"}, by_name=False) is not None


def test_what_is_meant_for_its_own_machine() -> None:
    assert is_for_own_machine(DashboardSettings(port=1))
    assert not is_for_own_machine(DashboardSettings(port=1, insecure=True))
    assert not is_for_own_machine(DashboardSettings(port=1, host="0.0.0.0", insecure=True))
    assert not is_for_own_machine(DashboardSettings(port=1, token=SecretStr("a-token-of-enough-length")))
