"""The hub's topics: what each must be like, and what is wrong with those that are there.  [P]

Every topic has one partition (its order is the one order) and is stamped with the broker's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from global_sync.transport.base import HISTORY, LOG, PROPOSALS, REPORTS, RULES, SUBJECTS, USAGE

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_DELETE, _KEPT = "delete", "-1"

TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    LOG: {"cleanup.policy": _DELETE, "retention.ms": _KEPT, "retention.bytes": _KEPT},
    REPORTS: {"cleanup.policy": _DELETE, "retention.ms": str(10 * _MINUTE_MS), "segment.ms": str(5 * _MINUTE_MS)},
    PROPOSALS: {"cleanup.policy": _DELETE, "retention.ms": str(30 * _DAY_MS)},
    RULES: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": str(60 * _MINUTE_MS)},
    HISTORY: {"cleanup.policy": _DELETE, "retention.ms": _KEPT, "retention.bytes": _KEPT},
    SUBJECTS: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": str(60 * _MINUTE_MS)},
    USAGE: {"cleanup.policy": _DELETE, "retention.ms": str(7 * _DAY_MS)},
}

LOOKED_AT: Final = (
    "cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "unclean.leader.election.enable",
    "message.timestamp.type",
)  # fmt: skip

REPLICATION_SAFE: Final = 3
"""One broker may be lost for good while another is being restarted."""


def settings_of(topic: str, min_insync: int) -> dict[str, str]:
    """The settings that ``topic`` is made with."""
    return {
        **TOPICS[topic],
        "min.insync.replicas": str(min_insync),
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "LogAppendTime",
    }


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it.  ``settings``: those of LOOKED_AT.  ``away``: replicas not in sync."""

    partitions: int
    replication: int
    settings: Mapping[str, str]
    away: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """``unsafe``: what the protocol stands on may be lost, or is not there; ``weak``: a broker's loss hurts."""

    severity: Literal["unsafe", "weak"]
    topic: str
    problem: str


def findings(found: Mapping[str, Topic], brokers: int) -> list[Finding]:
    """Whatever is wrong with the hub's topics, the unsafe first.  ``found``: by name, other topics too."""
    told = [finding for name in TOPICS for finding in _of_topic(name, found.get(name))]
    if brokers < REPLICATION_SAFE:
        word = "broker" if brokers == 1 else "brokers"
        told.append(Finding("weak", "(hub)", f"{brokers} {word}: with fewer than 3 the loss of one loses the log"))
    return sorted(told, key=lambda finding: finding.severity != "unsafe")


def _of_topic(name: str, topic: Topic | None) -> Iterator[Finding]:
    if topic is None:
        yield Finding("unsafe", name, "is not there: apportion hub init makes it")
        return
    settings = topic.settings
    if topic.partitions != 1:
        yield Finding("unsafe", name, f"has {topic.partitions} partitions, so no one order: make it anew with 1")
    for setting, wanted in TOPICS[name].items():
        given = settings.get(setting)
        if given is None or given == wanted:
            continue
        if setting == "cleanup.policy":
            yield Finding("unsafe", name, f"{setting}={given}: set it to {wanted}")
        elif wanted == _KEPT:
            yield Finding("unsafe", name, f"{setting}={given}, so records are dropped: set it to {wanted}")
        elif setting == "retention.ms" and int(given) != -1 and int(given) < int(wanted):
            yield Finding("weak", name, f"{setting}={given}: late readers want {wanted}")
    if settings.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        problem = "message.timestamp.type is not LogAppendTime: writers' clocks would stamp the records"
        yield Finding("unsafe", name, problem)
    if settings.get("unclean.leader.election.enable", "false") != "false" and topic.replication > 1:
        problem = "unclean.leader.election.enable=true: a broker that lags may lead, and accepted records are gone"
        yield Finding("unsafe", name, problem)
    if topic.away:
        problem = f"{topic.away} of {topic.replication} replicas not in sync: end no other broker until they are"
        yield Finding("weak", name, problem)
    insync = int(settings.get("min.insync.replicas", "1"))
    if insync > topic.replication:
        problem = f"min.insync.replicas={insync} of {topic.replication} replicas: nothing can be written"
        yield Finding("unsafe", name, problem)
    elif topic.replication < REPLICATION_SAFE:
        yield Finding("weak", name, f"replication {topic.replication}: 3 survives the loss of a broker")
    elif insync < 2:
        yield Finding(
            "weak", name, "min.insync.replicas=1: a record may be on one broker when it is acknowledged; set 2"
        )
    elif insync >= topic.replication:
        yield Finding(
            "weak",
            name,
            f"min.insync.replicas={insync} of {topic.replication}: nothing is written while one is down",
        )
