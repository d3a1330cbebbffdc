"""Callers of what is limited wait as long as they are told, and not all equally long."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest
from apportion import retry
from apportion.retry import patient, patient_async, retry_after_s

NOW = datetime(2026, 2, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3), (" 0 ", 0), ("1.5", None), ("-1", None), ("", None), (None, None), ("soon", None), ("²", None),
        ("Sun, 01 Feb 2026 12:00:30 GMT", 30), ("Sun, 01 Feb 2026 11:00:00 GMT", 0), ("9" * 400, 999_999_999),
    ],
)  # fmt: skip
def test_a_wait_is_read_as_a_number_or_as_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


class Slept:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        monkeypatch.setattr("tenacity.nap.time.sleep", self.seconds.append)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Slept:
    return Slept(monkeypatch)


def saying(*responses: httpx.Response) -> Callable[[], httpx.Response]:
    left = list(responses)
    return lambda: left.pop(0)


def busy(retry_after: str | None = None, status: int = 429) -> httpx.Response:
    return httpx.Response(status, headers={} if retry_after is None else {"retry-after": retry_after})


def test_it_waits_at_least_as_long_as_it_was_told_and_a_little_more(slept: Slept) -> None:
    response = patient(saying(busy("2"), busy("4", 503), httpx.Response(200)))
    assert response.status_code == 200
    first, second = slept.seconds
    assert 2 <= first <= 2.6
    assert 4 <= second <= 5.1


def test_those_who_were_denied_together_do_not_come_back_together(slept: Slept) -> None:
    for _ in range(20):
        patient(saying(busy("8"), httpx.Response(200)))
    assert len(set(slept.seconds)) > 15
    assert max(slept.seconds) - min(slept.seconds) > 0.5


def test_without_a_wait_the_bound_of_a_random_one_grows(slept: Slept) -> None:
    patient(saying(*[busy()] * 4, httpx.Response(200)))
    assert all(seconds <= bound for seconds, bound in zip(slept.seconds, (0.5, 1, 2, 4), strict=True))


def test_after_the_last_try_the_last_response_comes_back(slept: Slept) -> None:
    assert patient(saying(*[busy("1")] * 3), tries=3).status_code == 429
    assert len(slept.seconds) == 2


def test_nothing_is_waited_for_that_would_be_too_late(slept: Slept) -> None:
    assert patient(saying(busy("3600")), give_up_after_s=60).status_code == 429
    assert slept.seconds == []


@pytest.mark.parametrize("status", [200, 400, 404, 500, 502])
def test_what_no_wait_mends_comes_back_at_once(slept: Slept, status: int) -> None:
    assert patient(saying(httpx.Response(status))).status_code == status


def test_an_error_is_the_callers(slept: Slept) -> None:
    def fails() -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(httpx.ConnectError):
        patient(fails)


async def test_awaiting_is_as_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "SPREAD_S_MOST", 0.0)
    answers = saying(busy("0"), httpx.Response(200))

    async def call() -> httpx.Response:
        return answers()

    assert (await patient_async(call)).status_code == 200


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"give_up_after_s": -1}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        patient(saying(), **wrong)  # type: ignore[arg-type]
