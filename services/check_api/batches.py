"""Batches of independent checks, of which a bounded number is at the store at any time.

A batch that fits goes out at once, so that its calls leave in one write a shard.  Without the bound, a thousand
calls in front of everybody else's would make the store's deadline pass for checks that are not part of any batch.
Batches that wait do so in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from regional_limiter.model.decision import Answer, Check
from regional_limiter.store.base import Allowed
from services.check_api.check_limiter import Submit

CHECKS_AT_ONCE = 256
"""Of all batches together: about 3 ms of work for one shard, less than half of a call's deadline."""
BATCHES_WAITING = 64

Outcomes = Sequence[Answer | Allowed | Exception]
Done = Callable[[Outcomes], None]


class _Batch:
    __slots__ = ("checks", "done", "left", "outcomes", "sent")

    def __init__(self, checks: Sequence[Check | Exception], done: Done) -> None:
        self.checks = checks
        self.done = done
        self.sent = 0
        self.left = len(checks)
        self.outcomes: list[Answer | Allowed | Exception] = [_UNANSWERED] * len(checks)


_UNANSWERED = RuntimeError("a check of a batch was not answered")


class Batches:
    """All batches of one node."""

    def __init__(self, submit: Submit, at_once: int = CHECKS_AT_ONCE, waiting_most: int = BATCHES_WAITING) -> None:
        self._submit = submit
        self._at_once = at_once
        self._waiting_most = waiting_most
        self._waiting: deque[_Batch] = deque()
        self._in_flight = 0
        self._sending = False

    def submit(self, checks: Sequence[Check | Exception], done: Done) -> bool:
        """Ask for every check; ``done`` gets what became of each, in order, perhaps before this returns.

        An item that is an exception already stays one and costs the others nothing.  False: so many batches wait
        that this one is not taken; ``done`` is not called then.
        """
        if len(self._waiting) >= self._waiting_most:
            return False
        if not checks:
            done([])
            return True
        self._waiting.append(_Batch(checks, done))
        self._send()
        return True

    def _send(self) -> None:
        if self._sending:  # an answer came while we send
            return
        self._sending = True
        waiting, submit = self._waiting, self._submit
        try:
            while waiting and self._in_flight < self._at_once:
                batch = waiting[0]
                place = batch.sent
                batch.sent += 1
                if batch.sent == len(batch.checks):
                    waiting.popleft()
                self._in_flight += 1
                check = batch.checks[place]
                if isinstance(check, Exception):
                    self._answered(batch, place, check)
                    continue
                try:
                    submit(check, partial(self._answered, batch, place))
                except Exception as error:
                    self._answered(batch, place, error)
        finally:
            self._sending = False

    def _answered(self, batch: _Batch, place: int, outcome: Answer | Allowed | Exception) -> None:
        self._in_flight -= 1
        batch.outcomes[place] = outcome
        batch.left -= 1
        # Half of the room at a time: the calls of one turn of the loop leave in one write.
        if self._waiting and 2 * self._in_flight <= self._at_once:
            self._send()
        if batch.left == 0:
            batch.done(batch.outcomes)
