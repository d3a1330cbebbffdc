"""Directed schedules: each returns what went wrong (nothing, unless a rule is broken)."""

from __future__ import annotations

from collections.abc import Callable

from ..cast import Cast

Schedule = Callable[[Cast], list[str]]
SCHEDULES: dict[int, Schedule] = {}


def schedule(number: int) -> Callable[[Schedule], Schedule]:
    """Register a schedule under its number in the protocol's list."""

    def register(act: Schedule) -> Schedule:
        assert number not in SCHEDULES
        SCHEDULES[number] = act
        return act

    return register


from . import bases, consent, escrow, floors, ledger, redis, sessions, several, system, token_leases  # noqa: E402, F401  (they register themselves)
