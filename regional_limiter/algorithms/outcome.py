"""What an algorithm answers: both ways a check can end, so that several rules can be charged all or none.  Pure.

An algorithm decides one bucket and cannot know whether another rule of the same check denies.  It therefore
returns what to store and what to say if the cost is charged, and if it is not; :func:`settle` picks.
"""

from __future__ import annotations

from collections.abc import Sequence

from regional_limiter.model.decision import Verdict
from regional_limiter.model.value import value

RETRY_FOR_LARGER_SHARE_MS = 1000
"""The wait named when the cost does not fit the region's share now, but would fit a larger one."""

SHARE_ZERO_RESET_MS = 60_000
"""``reset_after_ms`` (and the life of the key) of a bucket whose share is 0: it refills only by a new share."""

STEP_KEPT_MS = 2000
"""A clock that went back by no more than this keeps a bucket's stored time."""

REBASE_EVERY_MS = 30_000
"""A larger step back rebases a bucket, but not twice within this: two alternating clocks mint next to nothing."""


@value
class Ending:
    """One way a check can end for one bucket.  ``state`` None: the store is left as it is."""

    verdict: Verdict
    state: bytes | None = None
    ttl_ms: int = 0


@value
class Outcome:
    """``charged`` if the cost is taken, ``left`` if not; ``costs_denied``: charged even if the check is denied."""

    allowed: bool
    charged: Ending
    left: Ending
    costs_denied: bool


def settle(outcomes: Sequence[Outcome]) -> list[Ending]:
    """All are charged or none, but for the rules that charge denied checks too."""
    everyone_allows = all(outcome.allowed for outcome in outcomes)
    return [outcome.charged if everyone_allows or outcome.costs_denied else outcome.left for outcome in outcomes]
