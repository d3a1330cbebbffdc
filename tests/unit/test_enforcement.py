"""What share is in force, now and before (E1 to E4): each test names what would go wrong otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regional_limiter.model import enforcement as module
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import BASE, LEASED_MOST, Enforcement, ShareInForce, Write, WriteReply
from regional_limiter.model.share import ProtocolTimes, floor_of

TIMES = ProtocolTimes()
GAP, CONSENT = TIMES.gap_us, TIMES.consent_us
T0 = 10**12
BASE_SHARE = 3000
FLOOR_SHARE = floor_of(BASE_SHARE)
WRITE = Write("n1", "n1", 1, 1, 0, True, {}, False, 2, {"d": BASE_SHARE})


class Clocked(Enforcement):
    """A point that is touched all the time, so that only a test's own jumps are gaps."""

    def __init__(self) -> None:
        super().__init__(TIMES)
        self.now_us = T0
        self.version = 0
        self.enter(T0)

    def wait(self, us: int) -> None:
        end_us = self.now_us + us
        while self.now_us < end_us:
            self.now_us = min(end_us, self.now_us + GAP)
            self.enter(self.now_us)

    def tell(self, **fields: object) -> WriteReply:
        self.version += 1
        write = replace(WRITE, version=self.version, until_us=self.now_us + TIMES.session_us)
        return self.write(self.now_us, replace(write, **fields))  # type: ignore[arg-type]

    def says(self, key: str = "k") -> ShareInForce:
        self.know_base(self.now_us, "d", 2, BASE_SHARE)
        return self.share(self.now_us, key, "d")


@pytest.fixture
def point() -> Clocked:
    return Clocked()


def history(share: ShareInForce) -> tuple[int, int, int, int]:
    return share.share, share.since_us - T0, share.share_before, share.before_since_us - T0


# ---- E1


def test_what_nodes_leased_is_remembered_past_a_step_of_the_clock_and_then_forgotten() -> None:
    times = ProtocolTimes()
    point, key = Enforcement(times), "rl:{t}:default/r:u"
    version = 0

    def rests(now_us: int, share: int) -> tuple[str, ...]:
        nonlocal version
        version += 1
        write = Write(
            "n", point.instance, 1, version, now_us + 10**7, True, {key: share}, True, 1, {"default": 5000}
        )
        return point.write(now_us, write).resting

    now_us = 10**12
    rests(now_us, 9000)
    rests(now_us, 9000)
    assert rests(now_us, 20) == ()
    rests(now_us, 9000)
    assert point.may_be_leased(now_us, key)
    point.note_lease(key, "default", 9000)
    now_us += times.gap_us
    point.enter(now_us)
    now_us += times.token_lease_us
    assert [rests(now_us, share) for share in (20, 8999, BASE, 9000)] == [(key,), (key,), (key,), ()]
    for _ in range(3):
        now_us += times.gap_us
        rests(now_us, 9000)
    assert rests(now_us, 20) == ()


def test_so_many_keys_are_leased_of_at_a_time() -> None:
    point = Enforcement(ProtocolTimes())
    point.enter(0)
    for number in range(LEASED_MOST):
        assert point.may_be_leased(0, f"k{number}")
        point.note_lease(f"k{number}", "default", 5000)
    assert not point.may_be_leased(0, "one more")
    assert point.may_be_leased(0, "k7")
    assert point.may_be_leased(ProtocolTimes().lease_remembered_us, "one more")


def test_a_new_variable_holds_the_floor_for_a_consent_and_then_the_base(point: Clocked) -> None:
    assert (point.says().share, point.says().kind) == (FLOOR_SHARE, ShareKind.FLOOR)
    point.wait(CONSENT - 1)
    assert point.says().kind is ShareKind.FLOOR
    point.wait(1)
    assert (point.says().share, point.says().kind) == (BASE_SHARE, ShareKind.BASE)
    assert history(point.says()) == (BASE_SHARE, CONSENT, FLOOR_SHARE, 0)


@pytest.mark.parametrize(("step", "lost"), [(GAP, False), (GAP + 1, True), (0, False), (-1, True)])
def test_a_gap_or_a_step_back_of_the_clock_loses_everything(point: Clocked, step: int, lost: bool) -> None:
    point.tell(leases={"k": 5000})
    point.tell(leases={"k": 5000})
    point.now_us += step
    point.enter(point.now_us)
    assert (point.instance == "") is lost
    assert point.says().share == (FLOOR_SHARE if lost else 5000)
    assert (point.births == 2) is lost


def test_nothing_is_said_of_a_variable_that_no_call_has_begun() -> None:
    with pytest.raises(RuntimeError):
        Enforcement(TIMES).share(T0, "k", "d")


# ---- E2


def test_in_session_a_key_without_lease_has_its_base_only_when_all_leases_are_known(point: Clocked) -> None:
    point.tell()
    assert point.says().kind is ShareKind.FLOOR
    point.tell(all_known=True)
    assert point.says().kind is ShareKind.BASE
    point.tell(session=2)
    assert point.says().kind is ShareKind.FLOOR


def test_a_lease_counts_while_the_session_lives_then_the_floor_then_the_base(point: Clocked) -> None:
    point.tell(leases={"k": 9000}, all_known=True)
    point.tell(leases={"k": 9000}, all_known=True)
    assert (point.says().share, point.says().kind) == (9000, ShareKind.LEASE)
    assert point.says().session_left_us == TIMES.session_us
    point.wait(TIMES.session_us)
    assert (point.says().share, point.says().session_left_us) == (FLOOR_SHARE, 0)
    point.wait(CONSENT - TIMES.session_us)
    assert point.says().share == BASE_SHARE
    assert history(point.says()) == (BASE_SHARE, CONSENT, FLOOR_SHARE, TIMES.session_us)


def test_a_lease_below_the_floor_gives_the_floor_and_base_gives_the_base(point: Clocked) -> None:
    point.tell(leases={"k": 0, "j": BASE})
    point.tell(leases={"k": 0, "j": BASE})
    assert point.says("k").share == FLOOR_SHARE
    assert point.says("j").share == BASE_SHARE


def test_a_session_that_outlives_the_consent_ends_at_the_base(point: Clocked) -> None:
    point.tell(until_us=T0 + 2 * CONSENT, leases={"k": 9000}, extend=False)
    point.tell(until_us=T0 + 2 * CONSENT, leases={"k": 9000}, extend=False)
    point.wait(2 * CONSENT)
    assert history(point.says()) == (BASE_SHARE, 2 * CONSENT, 9000, 0)


def test_an_unknown_domain_has_base_nothing(point: Clocked) -> None:
    point.wait(CONSENT)
    assert point.share(point.now_us, "k", "elsewhere").share == 0


# ---- E3


def test_a_write_for_another_instance_or_without_session_or_not_newer_is_void(point: Clocked) -> None:
    assert not point.tell(instance="").accepted  # names the variable, and no more
    assert point.instance == "n1"
    assert point.tell(leases={"k": 5000}).accepted
    assert not point.tell(instance="n0").accepted
    assert not point.tell(session=0).accepted
    assert not point.tell(version=2).accepted
    assert point.tell(session=2, version=1).accepted
    assert not point.tell(session=1, version=99).accepted


def test_a_refused_write_changes_nothing(point: Clocked) -> None:
    point.tell(leases={"k": 5000})
    before = point.says()
    point.now_us += 1
    reply = point.tell(instance="other", leases={"k": 9000}, all_known=True, base_version=9, bases={"d": 9})
    assert not reply.accepted
    assert reply.age_us == 1
    assert history(point.says()) == history(before)
    assert point.known_bases() == (2, {"d": BASE_SHARE})


def test_a_new_session_forgets_the_leases_but_not_what_they_were(point: Clocked) -> None:
    point.tell(leases={"k": 9000}, all_known=True)
    point.wait(10)
    point.tell(session=2, all_known=True)
    assert history(point.says()) == (BASE_SHARE, 10, 9000, 0)


def test_another_servers_replication_id_resets_the_variable(point: Clocked) -> None:
    point.write(T0, replace(WRITE, until_us=T0 + 10**6, leases={"k": 9000}), "a")
    assert point.says().share == 9000
    reply = point.write(T0, replace(WRITE, nonce="n2", version=2), "b")
    assert (reply.accepted, reply.instance) == (False, "n2")
    assert point.says().share == FLOOR_SHARE


def test_a_late_write_lengthens_the_promise_and_not_the_right(point: Clocked) -> None:
    point.tell(leases={"k": 9000}, until_us=T0 + 10**6)
    point.wait(2 * 10**6)
    point.tell(leases={"k": 9000}, until_us=T0 + 10**6)
    assert point.says().share == FLOOR_SHARE
    assert point.says().consent_left_us == CONSENT


def test_an_extension_after_the_consent_had_ended_takes_the_base_back(point: Clocked) -> None:
    assert point.says().share == FLOOR_SHARE
    point.wait(CONSENT + 5)
    assert point.says().share == BASE_SHARE
    point.tell(instance="", until_us=0)
    point.tell(until_us=0)
    assert history(point.says()) == (FLOOR_SHARE, CONSENT + 5, BASE_SHARE, CONSENT)


def test_the_table_of_leases_is_bounded_and_a_write_that_does_not_fit_is_refused(
    point: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASES_MOST", 4)
    monkeypatch.setattr(module, "LEASES_KEPT", 2)
    assert point.tell(leases={"a": 9000, "b": BASE}, all_known=True).accepted
    point.wait(10)
    assert point.tell(leases={"c": BASE, "e": BASE}).accepted
    assert point.tell(leases={"f": 1000}).accepted  # b goes, then the oldest others
    assert [point.says(key).share for key in "abcef"] == [9000, BASE_SHARE, BASE_SHARE, BASE_SHARE, 1000]
    assert point.tell(leases={"g": 1000, "h": 1000}).accepted
    assert not point.tell(leases={"i": 1000}).accepted
    assert point.tell(leases={"a": 500}).accepted  # a shrink always fits


# ---- bases


def test_the_newest_version_of_a_base_counts_and_of_equals_the_least(point: Clocked) -> None:
    point.wait(CONSENT)
    for version, base, counts in (
        (2, 3000, 3000),
        (1, 9000, 3000),
        (2, 2000, 2000),
        (2, 4000, 2000),
        (3, 5000, 5000),
    ):
        point.know_base(point.now_us, "d", version, base)
        assert point.share(point.now_us, "k", "d").share == counts


def test_a_named_floor_counts_as_its_base_does_and_is_never_below_the_usual_one_nor_above_the_base(
    point: Clocked,
) -> None:
    """In its consent and without a session, the region has its floor."""
    for version, floor, counts in (
        (2, 0, FLOOR_SHARE),
        (3, 900, 900),
        (3, 800, 800),
        (3, 2000, 800),
        (2, 2500, 800),
        (4, FLOOR_SHARE - 1, FLOOR_SHARE),
        (5, 10_000, BASE_SHARE),
    ):
        point.know_base(point.now_us, "d", version, BASE_SHARE, floor)
        told = point.share(point.now_us, "k", "d")
        assert (told.share, told.kind, told.floor) == (counts, ShareKind.FLOOR, counts)


def test_no_lease_is_below_the_named_floor(point: Clocked) -> None:
    point.tell(leases={"k": 100, "j": 1000}, base_version=3, bases={"d": BASE_SHARE, "d#floor": 900})
    point.know_base(point.now_us, "d", 3, BASE_SHARE, 900)
    assert [point.share(point.now_us, key, "d").share for key in "kj"] == [900, 1000]
    assert point.known_bases() == (3, {"d": BASE_SHARE, "d#floor": 900})
    assert point.peek_base(point.now_us, "d") == (3, BASE_SHARE, 900)


def test_bases_of_a_deposed_process_come_too_late(point: Clocked) -> None:
    point.tell(base_version=4, bases={"d": 1000, "e": 7})
    point.tell(session=2, base_version=2, bases={"d": 9000})
    assert point.known_bases() == (4, {"d": 1000, "e": 7})
    point.tell(session=2, base_version=5, bases={"d": 2000})
    assert point.known_bases() == (5, {"d": 2000})


# ---- E4


def test_history_joins_what_the_lease_and_the_base_did(point: Clocked) -> None:
    point.tell(leases={"k": BASE})
    point.tell(leases={"k": BASE})
    assert history(point.says()) == (BASE_SHARE, 0, FLOOR_SHARE, 0)
    point.wait(10)
    point.know_base(point.now_us, "d", 3, 4000)
    assert history(point.says()) == (4000, 10, BASE_SHARE, 0)
    point.wait(10)
    point.tell(leases={"k": 9000})
    assert history(point.says()) == (9000, 20, 4000, 10)
    point.wait(10)
    point.know_base(point.now_us, "d", 4, 5000)
    assert history(point.says()) == (9000, 30, 9000, 20)


def test_history_knows_what_a_floor_was(point: Clocked) -> None:
    point.know_base(point.now_us, "d", 2, BASE_SHARE, 900)
    point.wait(10)
    point.know_base(point.now_us, "d", 3, BASE_SHARE, 1200)
    assert history(point.share(point.now_us, "k", "d")) == (1200, 10, 900, 0)
    point.wait(10)
    point.know_base(point.now_us, "d", 4, BASE_SHARE, 1200)
    assert history(point.share(point.now_us, "k", "d")) == (1200, 10, 900, 0)


def test_the_same_lease_again_is_no_change(point: Clocked) -> None:
    point.tell(leases={"k": 9000})
    for _ in range(3):
        point.wait(1000)
        point.tell(leases={"k": 9000}, all_known=True)
    assert history(point.says())[:2] == (9000, 0)


def test_peek_share_tells_what_a_call_would_use_without_making_it(point: Clocked) -> None:
    point.tell(leases={"k": 9000}, all_known=True)
    assert point.peek_share(point.now_us, "k", BASE_SHARE) == 9000
    assert point.peek_share(point.now_us, "j", BASE_SHARE) == BASE_SHARE
    assert point.peek_share(point.now_us + GAP + 1, "k", BASE_SHARE) == FLOOR_SHARE
