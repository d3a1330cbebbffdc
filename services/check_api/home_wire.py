"""What nodes of different regions say to each other about buckets of ``distribution: home``, as bytes.  Pure.

msgpack: a question names what is to be done with some buckets, which differ and share one hash tag; the answer is
what the store said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Literal

import msgspec

from regional_limiter.algorithms.registry import ALGORITHMS
from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.engine import CALLS_AT_ONCE
from regional_limiter.model.decision import COST_MOST, Verdict
from regional_limiter.model.keys import is_bucket_key, rule_of, tag_of
from regional_limiter.model.rule import Algorithm, CalendarWindow, Rate
from regional_limiter.model.share import LARGEST_EXACT_INTEGER
from regional_limiter.plan import ID_BYTES_MOST
from regional_limiter.rules import grammar
from regional_limiter.rules.faults import shown
from regional_limiter.rules.quantities import is_zone
from regional_limiter.store.base import BucketCall

HOME_PATH = "/v1/home"
BYTES_MOST = 65_536

Act = Literal["check", "refund", "renew", "release", "drop"]
_REQUEST_BYTES_MOST = ID_BYTES_MOST + 2 + 64
"""Of a request's id as the store is asked: with the place of its group, or the name of a rule in shadow."""


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
    """``region``: the one that is meant, which alone may answer."""

    region: str
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


class OtherRegion(Exception):
    """The question is for another region than the one that was asked."""


_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Told)


def token_of(secret: bytes) -> str:
    """What nodes bear that ask other regions: whoever has the deployment's key secret can tell it."""
    return blake2b(b"nodes of other regions", digest_size=32, key=secret[:64]).hexdigest()


def encode_question(
    region: str, act: Act, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
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
    return _encoder.encode(Question(region, act, buckets, request_id, turn))


def decode_question(data: bytes, region: str) -> tuple[Question, list[BucketCall]]:
    """``region``: that of the node that was asked.  Raises WrongQuestion and OtherRegion."""
    try:
        question = _questions.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WrongQuestion(str(error)) from None
    if question.region != region:
        raise OtherRegion(f"this node is of region {region}, not {shown(question.region)}")
    _check_request(question)
    for bucket in question.buckets:
        if not is_bucket_key(bucket.key):
            raise WrongQuestion("the key of no bucket")
    calls = [bucket.call() for bucket in question.buckets]
    if not 1 <= len(calls) <= CALLS_AT_ONCE or len({tag_of(call.key) for call in calls}) != 1:
        raise WrongQuestion(f"1 to {CALLS_AT_ONCE} buckets of one tag")
    if len({call.key for call in calls}) != len(calls):
        raise WrongQuestion("a bucket that is named twice")
    for call in calls:
        _check_numbers(call)
        _check_kind(question.act, call)
    if question.act == "release" and not any(ALGORITHMS[call.algorithm].holder for call in calls):
        raise WrongQuestion("nothing that has slots")
    return question, calls


def _check_request(question: Question) -> None:
    if len((question.request_id or "").encode()) > _REQUEST_BYTES_MOST:
        raise WrongQuestion("a request's id is too long")
    if question.act == "release" and not question.request_id:
        raise WrongQuestion("who releases has an id")
    if not 0 <= (question.turn or 0) <= LARGEST_EXACT_INTEGER:
        raise WrongQuestion("turn out of range")


def _check_numbers(call: BucketCall) -> None:
    """No numbers that a rule could not have."""
    if not 0 <= call.capacity <= grammar.ENTRIES_MOST.get(call.algorithm, grammar.CAPACITY_MOST):
        raise WrongQuestion("capacity out of range")
    refill = call.refill
    if refill is not None and not (refill.tokens > 0 and 0 < refill.period_ms <= LARGEST_EXACT_INTEGER):
        raise WrongQuestion("a rate out of range")
    if refill is not None and not fits_exactly(call.capacity, refill):
        raise WrongQuestion("a rate that cannot be held exactly")
    for span_ms, most_ms in ((call.window_ms, grammar.SPAN_MS_MOST), (call.lease_ms, grammar.LEASE_MS_MOST)):
        if span_ms is not None and not 0 < span_ms <= most_ms:
            raise WrongQuestion("a span out of range")
    if len(call.holder.encode()) > ID_BYTES_MOST:
        raise WrongQuestion("a holder's name is too long")


def _check_kind(act: Act, call: BucketCall) -> None:
    """What its kind needs is there, and nothing is asked that the kind, or this act, does not have."""
    functions = ALGORITHMS[call.algorithm]
    # A reset gives back more than any bucket can owe.
    resets = act in ("refund", "drop")
    if not 0 <= call.cost <= (2 * max(call.capacity, COST_MOST) if resets else COST_MOST):
        raise WrongQuestion("cost out of range")
    if act == "drop" and not functions.new_when_dropped:
        raise WrongQuestion(f"a {call.algorithm} is not dropped")
    if act == "renew" and functions.renew is None:
        raise WrongQuestion(f"a {call.algorithm} has no leases")
    if call.calendar is not None:
        if functions.window_of is None or not is_zone(call.calendar.zone):
            raise WrongQuestion("a calendar that this kind, or this machine, does not have")
        return
    try:
        # Whoever drops names no holder.
        functions.numbers(replace(call, cost=0) if act == "drop" else call, 0)
    except ValueError as error:
        raise WrongQuestion(str(error)) from None


def encode_told(told: Told) -> bytes:
    return _encoder.encode(told)


def decode_told(data: bytes) -> Told:
    """Raises ValueError."""
    return _answers.decode(data)
