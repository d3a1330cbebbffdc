"""What happened that somebody on call wants to know: regions, leaders, refusals, changes of rules.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from global_sync.changes import (
    ACCESS_KINDS,
    DELETE_DOMAIN,
    DELETE_OVERRIDE,
    DELETE_RULE,
    DELETE_SUBJECTS,
    END_OVERRIDES,
    PUT_OVERRIDE,
    PUT_RULE,
    PUT_SET,
    PUT_SUBJECTS,
    History,
    rule_of,
)
from services.dashboard.past.share_steps import GONE, LEADER, OVER, RENEWED, SESSIONS, WELCOME, Step
from services.health import RegionHealth

Level = Literal["info", "warn", "bad"]
TEXT_MOST = 300


@dataclass(frozen=True, slots=True)
class Incident:
    """``ref`` names it, so that what is noticed twice is kept once.  ``kind``: cut, healed, leader, session_over,
    session, gone, refused, rules, override, subjects or gap."""

    ref: str
    at_ms: int
    level: Level
    kind: str
    text: str
    region: str | None = None
    domain: str | None = None
    rule: str | None = None


class Noticing:
    """``cut``: regions that were cut off when it was last written of them, and since when."""

    def __init__(self, cut: Mapping[str, int] | None = None) -> None:
        self._cut: dict[str, int] = dict(cut or {})
        self._over: dict[str, int] = {}
        self._refused: dict[str, tuple[object, int]] = {}

    def regions(self, regions: Iterable[RegionHealth], now_ms: int) -> list[Incident]:
        """Which regions were cut off or healed since the last look."""
        told: list[Incident] = []
        for one in regions:
            since_ms = self._cut.get(one.name)
            if one.link == "cut" and since_ms is None:
                since_ms = self._cut[one.name] = one.since_ms if one.since_ms is not None else now_ms
                text = f"{one.name} was cut off from the hub."
                told.append(Incident(f"cut {one.name} {since_ms}", since_ms, "bad", "cut", text, one.name))
            elif one.link == "linked" and since_ms is not None:
                del self._cut[one.name]
                text = f"{one.name} is linked again, after {_duration(now_ms - since_ms)}."
                told.append(Incident(f"healed {one.name} {since_ms}", now_ms, "info", "healed", text, one.name))
        return told

    def steps(self, steps: Iterable[Step]) -> list[Incident]:
        """Leaders that began, and sessions that ended and came back."""
        told = []
        for step in steps:
            if step.key != SESSIONS:
                continue
            if step.kind == LEADER:
                level: Level = "warn" if step.epoch > 1 else "info"  # the first of a log takes over from nobody
                text = f"The leader of epoch {step.epoch} {'took over' if step.epoch > 1 else 'began'}."
                told.append(Incident(f"leader {step.epoch} {step.at_ms}", step.at_ms, level, "leader", text))
            elif step.kind == OVER:
                self._over[step.region] = step.at_ms
                ref = f"over {step.region} {step.session} {step.at_ms}"
                text = f"The session of {step.region} ended: it is at its floor, and after its consent at its base."
                told.append(Incident(ref, step.at_ms, "warn", "session_over", text, step.region))
            elif step.kind == GONE:
                text = f"{step.region} was said to be destroyed: its part of every limit is free for the others."
                told.append(
                    Incident(f"gone {step.region} {step.at_ms}", step.at_ms, "warn", "gone", text, step.region)
                )
            elif step.kind in (RENEWED, WELCOME) and (over_ms := self._over.pop(step.region, None)) is not None:
                ref = f"session {step.region} {step.session} {step.at_ms}"
                text = f"{step.region} has a session again, after {_duration(step.at_ms - over_ms)}."
                told.append(Incident(ref, step.at_ms, "info", "session", text, step.region))
        return told

    def refusals(self, where: str, who: object, count: int, now_ms: int) -> list[Incident]:
        """``count``: how many records or claims ``who`` (one life of a process) has refused by an invariant."""
        known = self._refused.get(where)
        self._refused[where] = who, count
        before = known[1] if known is not None and known[0] == who else 0
        if known is None or count <= before:
            return []
        more = count - before
        words = "1 record was" if more == 1 else f"{more} records were"
        text = f"{words} refused by an invariant ({where}); its log says which."
        return [Incident(f"refused {where} {who} {count}", now_ms, "bad", "refused", text, where.split(" ")[-1])]


def incident_of(entry: History) -> Incident | None:
    """An accepted change of what nodes enforce; None for what is none (refused, or of access).

    Incidents are shown to everybody, so who made it is left to the audit.
    """
    if not entry.accepted or entry.kind in ACCESS_KINDS or entry.kind not in _CHANGES:
        return None
    kind, words = _CHANGES[entry.kind]
    rule = rule_of(entry)
    subject = f"{entry.domain}/{rule}" if rule else entry.domain
    text = f"{words.format(subject=subject)} (version {entry.version})."
    if entry.kind == PUT_SET and entry.restores is not None:
        text = f"{text[:-1]}, as it was in version {entry.restores}."
    return Incident(
        f"history {entry.offset}", entry.at_ms, "info", kind, text[:TEXT_MOST], None, entry.domain, rule or None
    )


_CHANGES: Mapping[str, tuple[str, str]] = {
    PUT_RULE: ("rules", "Rule {subject} was set"),
    DELETE_RULE: ("rules", "Rule {subject} was deleted"),
    PUT_SET: ("rules", "The rules of {subject} were set as a whole"),
    DELETE_DOMAIN: ("rules", "Domain {subject} was deleted"),
    PUT_OVERRIDE: ("override", "A key of {subject} was given an override"),
    DELETE_OVERRIDE: ("override", "An override of {subject} was taken away"),
    END_OVERRIDES: ("override", "Overrides of {subject} have ended"),
    PUT_SUBJECTS: ("subjects", "Subjects of {subject} were set"),
    DELETE_SUBJECTS: ("subjects", "Subjects of {subject} were deleted"),
}


def gap_incident(begin_ms: int, end_ms: int, what: str) -> Incident:
    text = f"Nothing was recorded of {what} for {_duration(end_ms - begin_ms)}: this dashboard did not read on."
    return Incident(f"gap {what} {begin_ms}", end_ms, "warn", "gap", text)


def _duration(ms: int) -> str:
    seconds = max(0, round(ms / 1000))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h"
