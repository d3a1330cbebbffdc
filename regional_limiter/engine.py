"""Several rules, one request: all are charged or none, and one answer.  Pure.

Buckets with one hash tag are decided together by the store.  Across tags the calls go out at the same time, and
when one of them denies, what the others charged is given back (:func:`to_give_back`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regional_limiter.model.decision import Answer, Reason, RuleVerdict, ShareKind, Verdict
from regional_limiter.model.keys import tag_of
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import BucketCall, Sharing

CALLS_AT_ONCE = 16
"""Rules that one store call decides; more of one tag are split, and behave as if their tags differed."""

NO_RULE = Answer(True, Reason.NO_RULE, None, None, 0, 0, None, False)
"""No rule matched."""


def unlimited(rule: str) -> Answer:
    """Only rules without a limit matched, ``rule`` the first of them."""
    return Answer(True, Reason.OK, None, None, 0, 0, rule, False)


def blocked(rule: str) -> Answer:
    """``rule`` denies this key whatever it has left, and no wait helps."""
    return Answer(False, Reason.BLOCKED, 0, 0, None, 0, rule, False)


_FLOOR = ShareKind.FLOOR
_FOREVER = float("inf")


def groups(keys: Sequence[str]) -> list[list[int]]:
    """The places of ``keys``, one list for each call to the store: same tag, at most ``CALLS_AT_ONCE``."""
    if len(keys) == 1:
        return [[0]]
    by_tag: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        by_tag.setdefault(tag_of(key), []).append(place)
    return [
        places[start : start + CALLS_AT_ONCE]
        for places in by_tag.values()
        for start in range(0, len(places), CALLS_AT_ONCE)
    ]


def to_give_back(
    decided: Sequence[Sequence[int]], calls: Sequence[BucketCall], verdicts: Sequence[Verdict | None]
) -> list[int]:
    """The places of what must be refunded, when the check as a whole was denied.

    ``decided``: the groups that the store has answered.  A group with a denial has charged nothing; a rule with
    ``charge_denied`` keeps its charge.  A holder that had slots before keeps all: giving back would free every one.
    """
    return [
        place
        for group in decided
        if all((verdict := verdicts[place]) is not None and verdict.allowed for place in group)
        for place in group
        if calls[place].cost > 0 and not calls[place].charge_denied and not _stays(verdicts[place])
    ]


def _stays(verdict: Verdict | None) -> bool:
    """Allowed, but not charged; or not what was charged just now alone."""
    return verdict is not None and (verdict.reason is Reason.SOFT_LIMITED or verdict.held_before > 0)


def given_back(call: BucketCall, verdict: Verdict) -> Verdict:
    """The verdict after its charge has been given back."""
    adaptive = call.sharing is Sharing.ADAPTIVE
    held = region_capacity(call.capacity, verdict.share, call.regions) if adaptive else call.part
    return replace(verdict, remaining=max(verdict.remaining, min(verdict.remaining + call.cost, held)))


def combine(verdicts: Sequence[RuleVerdict]) -> Answer:
    """One answer out of the verdicts of every matching rule, in the order of the set.

    Denied if any rule denies.  The answer names the tightest rule: when denied, the denying rule with the longest
    wait (no end of it is the longest); when allowed, the one with the fewest tokens left; of equals the first.
    The wait of a denied answer is the longest one, so it is the named rule's.
    """
    if not verdicts:
        return NO_RULE
    named = verdicts[0]
    wait_ms, degraded = named.verdict.wait_ms, named.verdict.degraded or named.verdict.share_kind is _FLOOR
    if len(verdicts) > 1:
        wait_ms = max(item.verdict.wait_ms for item in verdicts)
        degraded = any(_is_degraded(item.verdict) for item in verdicts)
        denying = [item for item in verdicts if not item.verdict.allowed]
        # max and min keep the first of equals
        named = max(denying, key=_wait) if denying else min(verdicts, key=_left)
    verdict = named.verdict
    return Answer(
        verdict.allowed,
        verdict.reason,
        named.limit,
        verdict.remaining,
        0 if verdict.allowed else verdict.retry_after_ms,
        verdict.reset_after_ms,
        named.rule,
        degraded,
        tuple(verdicts),
        wait_ms if verdict.allowed else 0,
    )


def _is_degraded(verdict: Verdict) -> bool:
    return verdict.degraded or verdict.share_kind is _FLOOR


def _left(item: RuleVerdict) -> int:
    return item.verdict.remaining


def _wait(item: RuleVerdict) -> float:
    wait_ms = item.verdict.retry_after_ms
    return _FOREVER if wait_ms is None else wait_ms
