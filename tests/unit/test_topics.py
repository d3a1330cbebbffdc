"""What is wrong with a hub's topics, and how badly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from global_sync.transport.base import HISTORY, LOG, RULES, USAGE
from global_sync.transport.topics import TOPICS, Topic, findings, settings_of

STRONG = {name: Topic(1, 3, settings_of(name, 2)) for name in TOPICS}


def changed(name: str, **fields: object) -> dict[str, Topic]:
    return {**STRONG, name: replace(STRONG[name], **fields)}  # type: ignore[arg-type]


def with_setting(name: str, setting: str, value: str) -> dict[str, Topic]:
    return changed(name, settings={**STRONG[name].settings, setting: value})


def test_what_init_makes_on_three_brokers_is_safe() -> None:
    assert findings(STRONG, brokers=3) == []


UNSAFE = [
    ("the log is not there", {name: STRONG[name] for name in TOPICS if name != LOG}, LOG, "is not there"),
    ("two partitions", changed(LOG, partitions=2), LOG, "no one order"),
    ("a log that ends by time", with_setting(LOG, "retention.ms", "604800000"), LOG, "records are dropped"),
    ("a log that ends by size", with_setting(LOG, "retention.bytes", "1000000"), LOG, "records are dropped"),
    ("a log that is compacted", with_setting(LOG, "cleanup.policy", "compact"), LOG, "cleanup.policy=compact"),
    ("a history that ends", with_setting(HISTORY, "retention.ms", "1"), HISTORY, "records are dropped"),
    ("rules that end", with_setting(RULES, "cleanup.policy", "delete"), RULES, "set it to compact"),
    ("writers' clocks", with_setting(LOG, "message.timestamp.type", "CreateTime"), LOG, "LogAppendTime"),
    ("a leader that lags", with_setting(LOG, "unclean.leader.election.enable", "true"), LOG, "accepted records"),
    ("more in sync than there are", changed(LOG, replication=1), LOG, "nothing can be written"),
]


@pytest.mark.parametrize(("found", "topic", "words"), [row[1:] for row in UNSAFE], ids=[row[0] for row in UNSAFE])
def test_whatever_loses_records_or_their_order_is_unsafe(found: dict[str, Topic], topic: str, words: str) -> None:
    first = findings(found, brokers=3)[0]
    assert (first.severity, first.topic) == ("unsafe", topic)
    assert words in first.problem


WEAK = [
    ("one broker", STRONG, 1, "(hub)", "1 broker:"),
    ("one replica", changed(LOG, replication=1, settings=settings_of(LOG, 1)), 3, LOG, "replication 1"),
    ("one in sync", changed(LOG, settings=settings_of(LOG, 1)), 3, LOG, "min.insync.replicas=1"),
    ("all in sync", changed(LOG, settings=settings_of(LOG, 3)), 3, LOG, "nothing is written while one is down"),
    ("a broker that is away", changed(LOG, away=1), 3, LOG, "1 of 3 replicas not in sync"),
    ("usage for an hour", with_setting(USAGE, "retention.ms", "3600000"), 3, USAGE, "late readers"),
]


@pytest.mark.parametrize(
    ("found", "brokers", "topic", "words"), [row[1:] for row in WEAK], ids=[row[0] for row in WEAK]
)
def test_whatever_the_loss_of_a_broker_hurts_is_weak(
    found: dict[str, Topic], brokers: int, topic: str, words: str
) -> None:
    (only,) = findings(found, brokers)
    assert (only.severity, only.topic) == ("weak", topic)
    assert words in only.problem


def test_usage_that_is_kept_for_ever_is_nobodys_problem() -> None:
    assert findings(with_setting(USAGE, "retention.ms", "-1"), brokers=3) == []
