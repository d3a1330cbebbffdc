"""Plain sentences: right about what is wrong, and silent when nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from regional_limiter.model.share import ProtocolTimes
from services.clock import time_of_day
from services.health import Heard, LeaderSeen, NodeProbe, RegionProbe, region_health, sentences

NOW_MS = 1_800_000_000_000
TIMES = ProtocolTimes()
WELL = LeaderSeen(3, 400)


def usage(session_ms: int = 19_000, consent_ms: int = 29_000, **changes: Any) -> dict[str, Any]:
    point = {"point": "r:1", "ok": True, "session_left_ms": session_ms, "consent_left_ms": consent_ms}
    return {
        "agent": "a", "epoch": 3, "session": 1, "rules_version": 4, "base_version": 3,
        "bases": {"default": 2_500}, "points": [point], "nodes": [], **changes,
    }  # fmt: skip


def said(heard: Heard | None, probe: RegionProbe | None = None, leader: LeaderSeen = WELL) -> list[str]:
    health = region_health("ap-south", heard, probe, NOW_MS)
    return [one.text(time_of_day) for one in sentences([health], leader, 100, 4, TIMES, NOW_MS)]


def direct(**changes: Any) -> RegionProbe:
    return RegionProbe((), usage(**changes), None, NOW_MS)


def test_when_all_is_well_nothing_is_said() -> None:
    assert said(Heard(usage(), 800)) == []


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [
        (10_000, "it goes on with its leases until {end}, then down to its floor"),
        (20_000, "it keeps to its floor (0.5 %) until {end}, then it uses its base (25.0 %)"),
        (60_000, "it uses its base (25.0 %), the static split, until the link is back"),
    ],
    ids=["lease", "floor", "base"],
)
def test_a_cut_region_says_with_what_it_goes_on_and_until_when(age_ms: int, words: str) -> None:
    since, end = time_of_day(NOW_MS - age_ms), time_of_day(NOW_MS + 9_000)
    expected = f"ap-south is cut off since {since}; {words.format(end=end)}."
    assert said(Heard(usage(19_000, 29_000), age_ms)) == [expected]


def test_the_agent_itself_is_believed_over_what_it_said_long_ago() -> None:
    (sentence,) = said(Heard(usage(19_000), 10_000), direct(session_ms=4_000))
    assert f"it goes on with its leases until {time_of_day(NOW_MS + 4_000)}" in sentence


def test_a_short_silence_is_no_cut() -> None:
    assert said(Heard(usage(), 4_000)) == ["ap-south has been silent for 4 s."]


def test_a_late_leader_is_said_with_the_end_of_the_shares() -> None:
    (sentence,) = said(Heard(usage(), 500), leader=LeaderSeen(3, 6_000))
    assert sentence.startswith(f"No word from a leader since {time_of_day(NOW_MS - 6_000)}")
    assert time_of_day(NOW_MS + 14_000) in sentence


def test_a_leader_that_is_gone_for_long_is_said_with_what_is_true_now_and_no_past_end() -> None:
    gone = LeaderSeen(3, 55_000)
    since = time_of_day(NOW_MS - 55_000)
    (sentence,) = said(Heard(usage(0, 12_000), 500), leader=gone)
    assert sentence == (
        f"No word from a leader since {since}: all shares have ended; regions keep to their floors until "
        f"{time_of_day(NOW_MS + 11_500)} at the latest, then they use their bases."
    )
    (sentence,) = said(Heard(usage(0, 0), 500), leader=gone)
    assert sentence == (
        f"No word from a leader since {since}: all shares have ended; every region uses its base until there is "
        "a leader."
    )


def test_before_the_first_leader_a_region_may_still_be_at_its_floor() -> None:
    (sentence,) = said(Heard(usage(0, 12_000), 500), leader=LeaderSeen(None, None))
    end = time_of_day(NOW_MS + 11_500)
    assert sentence == (
        f"No leader has been heard of yet: regions keep to their floors until {end} at the latest, then they use "
        "their bases."
    )


def test_a_region_that_is_linked_but_without_a_session_is_said() -> None:
    assert said(Heard(usage(0, 0), 500)) == ["ap-south is linked but has no session: it uses its base (25.0 %)."]
    (sentence,) = said(Heard(usage(0, 9_000), 500))
    assert f"it keeps to its floor (0.5 %) until {time_of_day(NOW_MS + 8_500)}, then it uses its base" in sentence


def test_a_floor_that_a_set_names_is_said_and_none_where_domains_differ() -> None:
    (sentence,) = said(Heard(usage(0, 9_000, floors={"default": 1_000}), 500))
    assert "it keeps to its floor (10.0 %) until" in sentence
    (sentence,) = said(Heard(usage(0, 9_000, bases={"a": 2_500, "b": 5_000}), 500))
    assert "it keeps to its floor until" in sentence


def test_without_kafka_here_no_region_is_blamed() -> None:
    health = region_health("ap-south", Heard(usage(), 60_000), None, NOW_MS)
    said = [one.text(time_of_day) for one in sentences([health], LeaderSeen(3, 60_000), 60_000, 4, TIMES, NOW_MS)]
    assert len(said) == 1
    assert said[0].startswith("Kafka does not answer here since")


def test_points_and_nodes_that_fail_are_named() -> None:
    points = [{"point": f"r:{n}", "ok": n > 1, "session_left_ms": 9000, "consent_left_ms": 9000} for n in range(3)]
    probe = RegionProbe((NodeProbe("http://n:1", None), NodeProbe("http://n:2", False)), None, None, NOW_MS)
    texts = said(Heard(usage(points=points), 500), probe)
    assert texts[0].startswith("ap-south: 2 of 3 Redis points not reached (r:0, r:1)")
    assert texts[1:] == ["ap-south: node http://n:1 does not answer.", "ap-south: node http://n:2 is not ready."]


def test_nodes_that_still_use_old_rules_are_counted() -> None:
    nodes = [{"node": "1", "address": "", "age_ms": 10, "rules_version": version} for version in (3, 4)]
    assert said(Heard(usage(nodes=nodes), 500)) == ["ap-south: 1 of 2 nodes use rules older than 4."]


def test_a_region_that_was_never_heard_of_is_unknown_and_not_cut() -> None:
    assert region_health("ap-south", None, None, NOW_MS).link == "unknown"


def test_a_region_that_only_answers_directly_is_cut_off_since_nobody_knows_when() -> None:
    (sentence,) = said(None, direct(session_ms=0, consent_ms=5_000))
    assert sentence == (
        "Nothing has come from ap-south through Kafka so far, though its agent answers; "
        f"it keeps to its floor (0.5 %) until {time_of_day(NOW_MS + 5_000)}, then it uses its base (25.0 %)."
    )


def test_a_display_that_has_just_begun_to_listen_calls_nobody_cut() -> None:
    assert region_health("ap-south", None, direct(), NOW_MS, watched_ms=500).link == "unknown"


def test_a_region_that_holds_new_bases_back_is_named() -> None:
    leader = LeaderSeen(3, 400, {"default": {"eu-west": 5_000}, "other": {}})
    (sentence,) = said(Heard(usage(), 800), leader=leader)
    assert sentence == "The new bases of domain default wait until eu-west (50.0 %) has left its old base."
    leader = LeaderSeen(3, 400, floors_wait_for={"default": {"eu-west": 500}})
    (sentence,) = said(Heard(usage(), 800), leader=leader)
    assert sentence == "The new floors of domain default wait until eu-west (5.0 %) has left its old floor."


def test_names_that_others_chose_are_shown_as_they_are() -> None:
    points = [{"point": "a{b}:1", "ok": False, "session_left_ms": 9000, "consent_left_ms": 9000}]
    probe = RegionProbe((NodeProbe("http://{0}", None),), None, None, NOW_MS)
    texts = said(Heard(usage(points=points), 500), probe)
    assert "(a{b}:1)" in texts[0]
    assert texts[1] == "ap-south: node http://{0} does not answer."


@pytest.mark.parametrize(
    ("heard_ms", "missed_ms", "asked_ms", "log_ms", "link"),
    [
        (800, 1_200, 0, 300, "linked"),
        (1_300, 1_200, 0, 300, "linked"),
        (1_300, 1_300, 0, 300, "cut"),
        (1_500, 900, 400, 300, "cut"),
        (1_500, 1_500, 0, 1_300, "linked"),
        (1_300, 1_300, 0, None, "linked"),
        (2_900, 1_300, 1_600, 300, "linked"),
        (3_500, 3_500, 0, 300, "cut"),
        (3_500, 200, 0, 300, "silent"),
        (6_500, 200, 0, 300, "cut"),
    ],
    ids=[
        "heard a moment ago",
        "its agent sees the leader",
        "neither hears the other",
        "its agent was asked a moment ago",
        "nobody leads that it could hear",
        "no leader was ever heard",
        "its agent was asked too long ago",
        "for longer",
        "its agent sees the leader, but we do not hear it",
        "unheard for long whatever it says",
    ],
)
def test_a_cut_is_known_before_the_silence_is_long_when_the_agent_answers_us(
    heard_ms: int, missed_ms: int, asked_ms: int, log_ms: int | None, link: str
) -> None:
    probe = RegionProbe((), usage(link_age_ms=missed_ms), None, NOW_MS - asked_ms)
    health = region_health("a", Heard(usage(), heard_ms), probe, NOW_MS, log_age_ms=log_ms)
    assert health.link == link
    assert health.since_ms == (None if link == "linked" else NOW_MS - heard_ms)
