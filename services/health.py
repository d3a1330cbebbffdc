"""How the regions are, in numbers and in plain sentences.  Pure.

Two witnesses tell of a region: the usage that its agent publishes through Kafka, and the same view asked of the
agent directly.  When the first goes silent and the second still answers, the region is cut off from the hub and
not down; its own timers then say for how long it goes on with what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, floor_of

SILENT_MS = 3_000
CUT_MS = 6_000
APART_MS = 1_300
"""Four signs of a leader, and a usage message: what an agent has missed, and we of it, when its link is cut."""
FRESH_MS = 1_500
"""An agent's own word that is older says nothing of now."""
NODE_ALIVE_MS = 5_000
BEATS_LATE = 4

Link = Literal["linked", "silent", "cut", "gone", "unknown"]
"""``gone``: said to be destroyed."""
Level = Literal["warn", "bad"]
TimeOfDay = Callable[[int], str]
"""Shows a wall-clock time in ms."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """``{0}``, ``{1}`` … in ``template`` stand for wall-clock times: a browser shows them in its own zone."""

    level: Level
    template: str
    times_ms: tuple[int, ...] = ()

    def text(self, time_of_day: TimeOfDay) -> str:
        return self.template.format(*map(time_of_day, self.times_ms))

    def shown(self, time_of_day: TimeOfDay) -> dict[str, Any]:
        text = self.text(time_of_day)
        return {"level": self.level, "text": text, "template": self.template, "times_ms": self.times_ms}


@dataclass(frozen=True, slots=True)
class NodeProbe:
    """``ready``: /readyz said yes; None: no answer in time."""

    url: str
    ready: bool | None


@dataclass(frozen=True, slots=True)
class RegionProbe:
    """``agent``, ``leader``: what the sync service says of itself and of its candidate leader, None without an
    answer; ``at_ms``: wall clock of the look."""

    nodes: tuple[NodeProbe, ...]
    agent: Mapping[str, Any] | None
    leader: Mapping[str, Any] | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A region's newest usage, and how long ago it was heard, by our clock."""

    usage: Mapping[str, Any]
    age_ms: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What a region uses when nothing more reaches it.  ``until_ms``: wall clock, None: for good."""

    name: Literal["lease", "floor", "base"]
    until_ms: int | None


@dataclass(slots=True)
class RegionHealth:
    """One region as displays show it.  Times in ms; None: not known."""

    name: str
    link: Link = "unknown"
    link_age_ms: int | None = None
    since_ms: int | None = None
    agent: str | None = None
    epoch: int | None = None
    session: int | None = None
    session_left_ms: int | None = None
    consent_left_ms: int | None = None
    rules_version: int | None = None
    base_version: int | None = None
    bases: Mapping[str, int] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)
    """By domain; floors only where a set names more than is usual."""
    points: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    node_urls: list[dict[str, Any]] = field(default_factory=list)
    phase: Phase | None = None
    stale: bool = False
    """Nobody has told lately: points and nodes are those of long ago."""

    @property
    def points_ok(self) -> int | None:
        return None if self.stale else sum(1 for point in self.points if point["ok"])

    @property
    def nodes_alive(self) -> int | None:
        return None if self.stale else sum(1 for node in self.nodes if node["age_ms"] < NODE_ALIVE_MS)


def region_health(
    name: str,
    heard: Heard | None,
    probe: RegionProbe | None,
    now_ms: int,
    watched_ms: int = CUT_MS,
    log_age_ms: int | None = None,
) -> RegionHealth:
    """What the two witnesses say, the fresher first.  ``watched_ms``: for how long we have been listening;
    ``log_age_ms``: since a leader was last heard here."""
    health = RegionHealth(name)
    direct = probe.agent if probe is not None else None
    if probe is not None:
        health.node_urls = [{"url": node.url, "ready": node.ready} for node in probe.nodes]
    if heard is not None:
        health.link_age_ms = heard.age_ms
        health.link = "linked" if heard.age_ms <= SILENT_MS else "silent" if heard.age_ms <= CUT_MS else "cut"
        if _is_apart(heard, direct, probe, now_ms, log_age_ms):
            health.link = "cut"
        if health.link != "linked":
            health.since_ms = now_ms - heard.age_ms
    elif direct is not None and watched_ms >= CUT_MS:
        health.link = "cut"
    view: Mapping[str, Any] | None = heard.usage if heard is not None else None
    age_ms = heard.age_ms if heard is not None else 0
    if direct is not None and probe is not None and (heard is None or health.link != "linked"):
        view, age_ms = direct, max(0, now_ms - probe.at_ms)
    health.stale = view is None or age_ms > CUT_MS
    if view is not None:
        _take_view(health, view, age_ms)
        if health.link in ("silent", "cut"):
            health.phase = _phase(health, now_ms)
    return health


def _is_apart(
    heard: Heard, direct: Mapping[str, Any] | None, probe: RegionProbe | None, now_ms: int, log_age_ms: int | None
) -> bool:
    """Whether a region is cut off though it was heard a moment ago: its agent answers us, and has not seen the
    leader's signs that we see; and nothing has come from it for as long."""
    if direct is None or probe is None or now_ms - probe.at_ms > FRESH_MS:
        return False
    missed_ms = (direct.get("link_age_ms") or 0) + now_ms - probe.at_ms
    is_led = log_age_ms is not None and log_age_ms < APART_MS
    return is_led and heard.age_ms >= APART_MS and missed_ms >= APART_MS


def _take_view(health: RegionHealth, view: Mapping[str, Any], age_ms: int) -> None:
    health.agent, health.epoch, health.session = view.get("agent"), view.get("epoch"), view.get("session")
    health.rules_version, health.base_version = view.get("rules_version"), view.get("base_version")
    health.bases, health.floors = view.get("bases") or {}, view.get("floors") or {}
    for point in view.get("points") or []:
        health.points.append(
            {
                "point": point["point"],
                "ok": bool(point["ok"]),
                "session_left_ms": max(0, (point.get("session_left_ms") or 0) - age_ms),
                "consent_left_ms": max(0, (point.get("consent_left_ms") or 0) - age_ms),
            }
        )
    for node in view.get("nodes") or []:
        shown = {name: node.get(name) for name in ("node", "address", "rules_version")}
        health.nodes.append({**shown, "age_ms": (node.get("age_ms") or 0) + age_ms})
    if health.points:
        health.session_left_ms = min(point["session_left_ms"] for point in health.points)
        health.consent_left_ms = min(point["consent_left_ms"] for point in health.points)


def _phase(health: RegionHealth, now_ms: int) -> Phase | None:
    """Of the point that holds on longest: until then some of the region's keys are still beyond their base."""
    if not health.points:
        return None
    session_ms = max(point["session_left_ms"] for point in health.points)
    consent_ms = max(point["consent_left_ms"] for point in health.points)
    if session_ms > 0:
        return Phase("lease", now_ms + session_ms)
    if consent_ms > 0:
        return Phase("floor", now_ms + consent_ms)
    return Phase("base", None)


# ---- sentences


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """``beat_age_ms``: since the last BEAT was read here; None when none was ever read.

    ``waiting_for``: domain -> regions (with the base that the leader still reckons with) that hold a change of
    bases back, as the leader says; ``floors_wait_for``: of floors that sets name.  ``heard_of_gone``: regions said
    to be destroyed that report all the same.
    """

    epoch: int | None
    beat_age_ms: int | None
    waiting_for: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    heard_of_gone: Sequence[str] = ()
    floors_wait_for: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def sentences(
    regions: Sequence[RegionHealth],
    leader: LeaderSeen,
    kafka_silent_ms: int | None,
    newest_rules: int,
    times: ProtocolTimes,
    now_ms: int,
) -> list[Sentence]:
    """What is wrong, the gravest first; empty when nothing is."""
    if kafka_silent_ms is None or kafka_silent_ms > CUT_MS:
        since, at = ("yet", ()) if kafka_silent_ms is None else ("since {0}", (now_ms - kafka_silent_ms,))
        text = f"Kafka does not answer here {since}; what is shown of the regions may be old."
        said = [Sentence("bad", text, at)]
        return said + [one for health in regions for one in _store_sentences(health)]
    said = [*_leader_sentences(regions, leader, times, now_ms), *_bases_sentences(leader), *_gone_sentences(leader)]
    for health in regions:
        if health.link == "gone":
            continue
        said += _link_sentences(health)
        if not _is_late(leader, times):
            said += _session_sentences(health, now_ms)
        said += _store_sentences(health)
        said += _node_sentences(health, newest_rules)
    return sorted(said, key=lambda one: one.level != "bad")


def _leader_sentences(
    regions: Sequence[RegionHealth], leader: LeaderSeen, times: ProtocolTimes, now_ms: int
) -> list[Sentence]:
    if leader.beat_age_ms is None:
        words, until = _at_rest(regions, now_ms)
        return [Sentence("bad", f"No leader has been heard of yet: {words}.".replace("{1}", "{0}"), until)]
    if not _is_late(leader, times):
        return []
    heard_ms = now_ms - leader.beat_age_ms
    end_ms = heard_ms + times.session_us // 1000
    if now_ms < end_ms:
        text = (
            "No word from a leader since {0}: shares stay as they are; without a new leader they end by {1}, and "
            "then every region goes back to its base."
        )
        return [Sentence("bad", text, (heard_ms, end_ms))]
    words, until = _at_rest(regions, now_ms)
    text = f"No word from a leader since {{0}}: all shares have ended; {words}."
    return [Sentence("bad", text, (heard_ms, *until))]


def _plain(words: str) -> str:
    """Words that others chose, as they are: a sentence is a template."""
    return words.replace("{", "{{").replace("}", "}}")


def _is_late(leader: LeaderSeen, times: ProtocolTimes) -> bool:
    return leader.beat_age_ms is None or leader.beat_age_ms * 1000 > BEATS_LATE * times.beat_us


def _at_rest(regions: Iterable[RegionHealth], now_ms: int) -> tuple[str, tuple[int, ...]]:
    """What regions use without sessions, and until when ({1}) as their points last told."""
    consent_ms = max((point["consent_left_ms"] for region in regions for point in region.points), default=0)
    if consent_ms > 0:
        words = "regions keep to their floors until {1} at the latest, then they use their bases"
        return words, (now_ms + consent_ms,)
    return "every region uses its base until there is a leader", ()


def _bases_sentences(leader: LeaderSeen) -> Iterator[Sentence]:
    for part, waiting_for in (("base", leader.waiting_for), ("floor", leader.floors_wait_for)):
        for domain, regions in sorted(waiting_for.items()):
            if regions:
                held = " and ".join(
                    f"{region} ({units * 100 / SHARE_UNITS:.1f} %)" for region, units in sorted(regions.items())
                )
                text = f"The new {part}s of domain {domain} wait until {held} has left its old {part}."
                yield Sentence("warn", _plain(text))


def _gone_sentences(leader: LeaderSeen) -> Iterator[Sentence]:
    for region in leader.heard_of_gone:
        text = (
            f"{region} was said to be destroyed and is heard of all the same: it has no part in any global limit. "
            "End it, and start it anew under another name."
        )
        yield Sentence("bad", _plain(text))


def _link_sentences(health: RegionHealth) -> list[Sentence]:
    if health.link == "silent" and health.link_age_ms is not None:
        return [Sentence("warn", f"{_plain(health.name)} has been silent for {health.link_age_ms / 1000:.0f} s.")]
    if health.link != "cut":
        return []
    words, until = _goes_on(health)
    if health.since_ms is None:
        # {0} is the time since when: there is none here.
        text = (
            f"Nothing has come from {_plain(health.name)} through Kafka so far, though its agent answers; {words}."
        )
        return [Sentence("bad", text.replace("{1}", "{0}"), until)]
    return [Sentence("bad", f"{_plain(health.name)} is cut off since {{0}}; {words}.", (health.since_ms, *until))]


def _session_sentences(health: RegionHealth, now_ms: int) -> list[Sentence]:
    """A link alone gives no share: a region that speaks may still be waiting to be welcomed, or to be renewed."""
    phase = _phase(health, now_ms)
    if health.link != "linked" or not health.points_ok or phase is None or phase.name == "lease":
        return []
    then = f"it uses its base{_base_words(health)}."
    if phase.until_ms is None:
        return [Sentence("warn", f"{_plain(health.name)} is linked but has no session: {then}")]
    now = f"it keeps to its floor{_floor_words(health)} until {{0}}"
    text = f"{_plain(health.name)} is linked but has no session: {now}, then {then}"
    return [Sentence("warn", text, (phase.until_ms,))]


def _goes_on(health: RegionHealth) -> tuple[str, tuple[int, ...]]:
    phase = health.phase
    base = _base_words(health)
    if phase is None:
        return f"it goes back to its base{base} by itself", ()
    until = () if phase.until_ms is None else (phase.until_ms,)
    if phase.name == "lease":
        return "it goes on with its leases until {1}, then down to its floor", until
    if phase.name == "floor":
        return f"it keeps to its floor{_floor_words(health)} until {{1}}, then it uses its base{base}", until
    return f"it uses its base{base}, the static split, until the link is back", until


def _base_words(health: RegionHealth) -> str:
    return _if_alike(set(health.bases.values()))


def _floor_words(health: RegionHealth) -> str:
    return _if_alike({floor_of(base, health.floors.get(domain, 0)) for domain, base in health.bases.items()})


def _if_alike(shares: set[int]) -> str:
    """In per cent, where it is the same of all domains."""
    return f" ({shares.pop() * 100 / SHARE_UNITS:.1f} %)" if len(shares) == 1 else ""


def _store_sentences(health: RegionHealth) -> list[Sentence]:
    down = [str(point["point"]) for point in health.points if not point["ok"]]
    if not down or health.stale:
        return []
    which = ", ".join(down[:3]) + (f" and {len(down) - 3} more" if len(down) > 3 else "")
    count = f"{len(down)} of {len(health.points)} Redis points"
    text = f"{health.name}: {count} not reached ({which}); keys there follow their rule's on_store_failure."
    return [Sentence("bad", _plain(text))]


def _node_sentences(health: RegionHealth, newest_rules: int) -> list[Sentence]:
    said = []
    for node in health.node_urls:
        if node["ready"] is None:
            said.append(Sentence("warn", _plain(f"{health.name}: node {node['url']} does not answer.")))
        elif not node["ready"]:
            said.append(Sentence("warn", _plain(f"{health.name}: node {node['url']} is not ready.")))
    behind = [
        node
        for node in health.nodes
        if node["age_ms"] < NODE_ALIVE_MS and (node["rules_version"] or 0) < newest_rules
    ]
    if behind and health.link == "linked":
        text = f"{health.name}: {len(behind)} of {len(health.nodes)} nodes use rules older than {newest_rules}."
        said.append(Sentence("warn", _plain(text)))
    return said
