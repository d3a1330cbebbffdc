"""Calling something that is limited: wait as long as it says, and try again.

    from apportion.retry import patient

    response = patient(lambda: httpx.get("https://api.example/orders"))
    response = await patient_async(lambda: client.get("https://api.example/orders"))

A response of 429 or 503 is asked for again: not before its ``Retry-After`` is over, plus a random part so that
those who were denied together do not come back together; without one after an exponentially growing, random time.
The last response is returned whatever it says.  Only for requests that may be sent twice.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_result,
    stop_after_attempt,
    stop_any,
    stop_before_delay,
)
from tenacity.wait import wait_random_exponential

TRY_AGAIN: Final = (429, 503)
SPREAD_PART: Final = 0.25
"""A wait that was asked for is made longer by up to this part of it, and by at most SPREAD_S_MOST."""
SPREAD_S_MOST: Final = 5.0


class Response(Protocol):
    """What httpx, requests and niquests give."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


_R = TypeVar("_R", bound=Response)


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """The seconds that a ``Retry-After`` asks for: a number, or a date; None if it is neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())


def patient(call: Callable[[], _R], *, tries: int = 5, give_up_after_s: float = 60.0) -> _R:
    """``call`` until it is not limited any more, at most ``tries`` times.

    ``give_up_after_s``: nothing is waited for that would end later than this after the first try.
    """
    retrying = Retrying(**_policy(tries, give_up_after_s))
    return retrying(call)


async def patient_async(call: Callable[[], Awaitable[_R]], *, tries: int = 5, give_up_after_s: float = 60.0) -> _R:
    """:func:`patient` for what is awaited."""
    retrying = AsyncRetrying(**_policy(tries, give_up_after_s))
    return await retrying(call)


def _policy(tries: int, give_up_after_s: float) -> dict[str, Any]:
    if tries < 1 or give_up_after_s < 0:
        raise ValueError("tries must be at least 1, and give_up_after_s at least 0")
    growing = wait_random_exponential(multiplier=0.5, max=30)

    def wait(state: RetryCallState) -> float:
        asked_s = _asked_s(state)
        if asked_s is None:
            return growing(state)
        return asked_s + random.uniform(0, min(SPREAD_S_MOST, SPREAD_PART * asked_s + 0.1))

    return {
        "retry": retry_if_result(lambda response: response.status_code in TRY_AGAIN),
        "wait": wait,
        "stop": stop_any(stop_after_attempt(tries), stop_before_delay(give_up_after_s)),
        "retry_error_callback": _last,
    }


def _asked_s(state: RetryCallState) -> float | None:
    assert state.outcome is not None
    value = state.outcome.result().headers.get("retry-after")
    return retry_after_s(value, datetime.now(UTC))


def _last(state: RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()
