"""What nodes of different regions say to each other about buckets of ``distribution: home``, as bytes.  Pure.

msgpack: a question names what is to be done with some buckets, which differ and share one hash tag; the answer is
what the store said.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.engine import CALLS_AT_ONCE
from regional_limiter.model.decision import COST_MOST, Verdict
from regional_limiter.model.keys import rule_of, tag_of
from regional_limiter.model.rule import Algorithm, CalendarWindow, Rate
from regional_limiter.rules import grammar
from regional_limiter.store.base import BucketCall

HOME_PATH = "/v1/home"
BYTES_MOST = 65_536

Act = Literal["check", "refund", "renew", "release", "drop"]
_RESET_COST_MOST = 2 * grammar.CAPACITY_MOST


class Bucket(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a BucketCall, what a limit that is in one place has."""

    key: str
    algorithm: Algorithm
    capacity: int
    cost: int
    refill: Rate | None = None
    window_ms: int | None = None
    calendar: CalendarWindow | None = None
    lease_ms: int | None = None
    queue: bool = False
    charge_denied: bool = False
    holder: str = ""

    def call(self) -> BucketCall:
        return BucketCall(
            key=self.key,
            algorithm=self.algorithm,
            capacity=self.capacity,
            refill=self.refill,
            window_ms=self.window_ms,
            cost=self.cost,
            charge_denied=self.charge_denied,
            domain=rule_of(self.key)[0],
            queue=self.queue,
            calendar=self.calendar,
            lease_ms=self.lease_ms,
            holder=self.holder,
        )


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    act: Act
    buckets: list[Bucket]
    request_id: str | None = None
    turn: int | None = None


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """``held``: of renew and release.  ``other_request``: the request's id asked for something else before.

    ``silent``: the store there did not answer, for that reason; ``may_have_run``: it may have done it.
    """

    verdicts: list[Verdict] = []
    held: list[bool] = []
    other_request: bool = False
    silent: str = ""
    may_have_run: bool = False


class WrongQuestion(ValueError):
    """These bytes are no question that a node asks; the text says why."""


_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Told)


def token_of(secret: bytes) -> str:
    """What nodes bear that ask other regions: whoever has the deployment's key secret can tell it."""
    return blake2b(b"nodes of other regions", digest_size=32, key=secret[:64]).hexdigest()


def encode_question(
    act: Act, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
) -> bytes:
    buckets = [
        Bucket(
            key=call.key,
            algorithm=call.algorithm,
            capacity=call.capacity,
            cost=call.cost,
            refill=call.refill,
            window_ms=call.window_ms,
            calendar=call.calendar,
            lease_ms=call.lease_ms,
            queue=call.queue,
            charge_denied=call.charge_denied,
            holder=call.holder,
        )
        for call in calls
    ]
    return _encoder.encode(Question(act, buckets, request_id, turn))


def decode_question(data: bytes) -> tuple[Question, list[BucketCall]]:
    """Raises WrongQuestion."""
    try:
        question = _questions.decode(data)
        calls = [bucket.call() for bucket in question.buckets]
        tags = {tag_of(call.key) for call in calls}
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WrongQuestion(str(error)) from None
    if not 1 <= len(calls) <= CALLS_AT_ONCE or len(tags) != 1 or len({call.key for call in calls}) != len(calls):
        raise WrongQuestion(f"1 to {CALLS_AT_ONCE} different buckets of one tag")
    for call in calls:
        _check(call)
    return question, calls


def _check(call: BucketCall) -> None:
    """No numbers that a rule could not have."""
    if not 0 <= call.capacity <= grammar.CAPACITY_MOST or not 0 <= call.cost <= max(COST_MOST, _RESET_COST_MOST):
        raise WrongQuestion("capacity or cost out of range")
    if call.refill is not None and not (call.refill.tokens > 0 and call.refill.period_ms > 0):
        raise WrongQuestion("a rate is above 0")
    if call.refill is not None and not fits_exactly(call.capacity, call.refill):
        raise WrongQuestion("a rate that cannot be held exactly")
    for span_ms in (call.window_ms, call.lease_ms):
        if span_ms is not None and not 0 < span_ms <= grammar.SPAN_MS_MOST:
            raise WrongQuestion("a span out of range")


def encode_told(told: Told) -> bytes:
    return _encoder.encode(told)


def decode_told(data: bytes) -> Told:
    """Raises ValueError."""
    return _answers.decode(data)
