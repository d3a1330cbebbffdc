"""The kinds of limits, as one table: kind -> its functions.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from regional_limiter.algorithms import (
    concurrency,
    fixed_window,
    gcra,
    leaky_bucket,
    sliding_window_counter,
    sliding_window_log,
    token_bucket,
)
from regional_limiter.algorithms.outcome import Ending, Outcome
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Algorithm
from regional_limiter.model.share import SHARE_UNITS
from regional_limiter.store.base import BucketCall, Sharing


@dataclass(frozen=True, slots=True)
class Functions:
    """``decide`` and ``give_back`` take (state or None, call, share in force, now_ms); see the modules.

    ``number`` is the kind's name in the function library, and ``numbers(call, now_ms)`` what that has to know of
    the rule beside what all kinds have.  ``adaptive``: can follow a moving share; the others count in whole units.
    ``holder``: the library is told who asks.

    ``reaches(call, charged_ms, now_ms)``: whether a refund now may give back what a request was charged then under
    the same storage key.  ``renew``: of kinds with leases; takes what ``decide`` takes; None: there is none.
    ``window_of(call, now_ms)``: of kinds that store each window by itself: its number, start and end in ms.
    ``new_when_dropped``: all is kept under one key whatever the time, and without it nothing has been used.
    """

    number: int
    numbers: Callable[[BucketCall, int], tuple[int, ...]]
    storage_key: Callable[[BucketCall, int], str]
    decide: Callable[[bytes | None, BucketCall, ShareInForce, int], Outcome]
    give_back: Callable[[bytes | None, BucketCall, ShareInForce, int], Ending | None]
    adaptive: bool = False
    holder: bool = False
    reaches: Callable[[BucketCall, int, int], bool] = lambda call, charged_ms, now_ms: True
    renew: Callable[[bytes | None, BucketCall, ShareInForce, int], Ending | None] | None = None
    window_of: Callable[[BucketCall, int], tuple[int, int, int]] | None = None
    new_when_dropped: bool = False


ALGORITHMS: Mapping[Algorithm, Functions] = {
    Algorithm.TOKEN_BUCKET: Functions(
        1,
        token_bucket.numbers,
        token_bucket.storage_key,
        token_bucket.decide,
        token_bucket.give_back,
        adaptive=True,
    ),
    Algorithm.FIXED_WINDOW: Functions(
        2,
        fixed_window.numbers,
        fixed_window.storage_key,
        fixed_window.decide,
        fixed_window.give_back,
        adaptive=True,
        window_of=fixed_window.window_of,
    ),
    Algorithm.GCRA: Functions(
        3, token_bucket.numbers, token_bucket.storage_key, gcra.decide, gcra.give_back, adaptive=True
    ),
    Algorithm.LEAKY_BUCKET: Functions(
        4,
        leaky_bucket.numbers,
        token_bucket.storage_key,
        leaky_bucket.decide,
        token_bucket.give_back,
        adaptive=True,
    ),
    Algorithm.SLIDING_WINDOW_COUNTER: Functions(
        5,
        sliding_window_counter.numbers,
        sliding_window_counter.storage_key,
        sliding_window_counter.decide,
        sliding_window_counter.give_back,
        reaches=sliding_window_counter.reaches,
        new_when_dropped=True,
    ),
    Algorithm.SLIDING_WINDOW_LOG: Functions(
        6,
        sliding_window_log.numbers,
        sliding_window_log.storage_key,
        sliding_window_log.decide,
        sliding_window_log.give_back,
        reaches=sliding_window_log.reaches,
        new_when_dropped=True,
    ),
    Algorithm.CONCURRENCY: Functions(
        7,
        concurrency.numbers,
        concurrency.storage_key,
        concurrency.decide,
        concurrency.give_back,
        holder=True,
        renew=concurrency.renew,
        new_when_dropped=True,
    ),
}


def functions_of(call: BucketCall) -> Functions:
    """The functions that decide ``call``; ValueError when its kind cannot follow a moving share."""
    functions = ALGORITHMS[call.algorithm]
    if call.sharing is Sharing.ADAPTIVE and not functions.adaptive:
        raise ValueError(f"{call.algorithm} cannot be adaptive")
    return functions


def fixed_share(call: BucketCall) -> ShareInForce:
    """The share of a call that the share protocol does not govern: the whole, or the number it carries."""
    if call.sharing is Sharing.STATIC:
        return ShareInForce(call.base, ShareKind.BASE, 0, call.base, 0, 0, 0)
    return ShareInForce(SHARE_UNITS, ShareKind.WHOLE, 0, SHARE_UNITS, 0, 0, 0)
