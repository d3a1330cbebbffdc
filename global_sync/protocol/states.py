"""The protocol's state machines as tables: what docs/protocol.md draws, and what tests hold the code to.  Pure.

The code decides by comparing times and numbers; the states are names for what these comparisons say.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class PointState(StrEnum):
    """What an enforcement point uses of every key."""

    FLOOR = "floor"  # bound by the region's consent, no session
    SESSION = "session"  # each key's lease, or its base
    BASE = "base"  # neither


class CandidateState(StrEnum):
    """What a candidate leader is."""

    FOLLOWS = "follows"
    WAITS = "waits"  # for its own MARK to be read back
    LEADS = "leads"
    SNAPS = "snaps"  # leads, and says nothing but BEATs until its snapshot is read back


class Transition(NamedTuple):
    """``before`` "": the beginning."""

    before: str
    event: str
    after: str


_P, _C = PointState, CandidateState

POINT: tuple[Transition, ...] = (
    Transition("", "born: a consent from now on", _P.FLOOR),
    Transition(_P.FLOOR, "written: the session lives on", _P.SESSION),
    Transition(_P.BASE, "written: the session lives on", _P.SESSION),
    Transition(_P.BASE, "written: the consent begins anew", _P.FLOOR),
    Transition(_P.SESSION, "the session ends, the consent lasts", _P.FLOOR),
    Transition(_P.SESSION, "the session ends, and the consent is over", _P.BASE),
    Transition(_P.FLOOR, "the consent ends", _P.BASE),
    Transition(_P.SESSION, "lost: restart, a clock that jumped, no call for a gap", _P.FLOOR),
    Transition(_P.BASE, "lost: restart, a clock that jumped, no call for a gap", _P.FLOOR),
)

CANDIDATE: tuple[Transition, ...] = (
    Transition("", "starts, reads the log", _C.FOLLOWS),
    Transition(_C.FOLLOWS, "silence: appends a MARK", _C.WAITS),
    Transition(_C.WAITS, "reads its own MARK, first with its number", _C.LEADS),
    Transition(_C.WAITS, "reads another's MARK with that number or a higher one", _C.FOLLOWS),
    Transition(_C.LEADS, "writes a snapshot", _C.SNAPS),
    Transition(_C.SNAPS, "reads its last part back", _C.LEADS),
    Transition(_C.LEADS, "reads a later MARK", _C.FOLLOWS),
    Transition(_C.SNAPS, "reads a later MARK", _C.FOLLOWS),
)


def drawn(table: Sequence[Transition]) -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    {before or '[*]'} --> {after}: {event}" for before, event, after in table]
    return "\n".join(lines)
