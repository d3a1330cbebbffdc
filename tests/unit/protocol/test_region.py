"""The region's side on its own: what it writes, settles and reports, and that all of it is bounded."""

from __future__ import annotations

from global_sync.protocol.messages import Beat, Config, Done, Kind, LeaseRecord, Mark, Want, Welcome
from global_sync.protocol.points import Rest
from global_sync.protocol.region import RegionSide
from global_sync.protocol.region_state import MARKS_KEPT
from regional_limiter.model.enforcement import BASE, Enforcement
from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.share import ProtocolTimes

TIMES = ProtocolTimes()
SECOND = 1_000_000
POINT = "127.0.0.1:7001/1"


def key(i: int) -> str:
    return f"rl:{{{i}}}:shop/all:u{i}"


class Bench:
    """A region with one point whose clock the test moves."""

    def __init__(self) -> None:
        self.side = RegionSide("eu", "me", TIMES)
        self.redis = Enforcement(TIMES)
        self.now = 100 * SECOND
        self.n = self.names = 0
        self.rests: list[Rest] = []

    def list(self) -> None:
        self.side.on_listing(self.side.listing_started(), [POINT], self.side.base_version)

    def write(self, limit: int = 500) -> bool:
        self.names += 1
        write = self.side.prepare_write(POINT, f"name{self.names}", limit)
        assert write is not None
        reply = self.redis.write(self.now, write)
        rest = self.side.on_reply(POINT, reply)
        if rest is not None:
            self.rests.append(rest)
        return reply.accepted

    def pass_time(self, duration: int) -> None:
        end = self.now + duration
        while self.now < end:
            self.now = min(end, self.now + SECOND // 3)
            self.redis.enter(self.now)

    def in_session(self) -> Bench:
        """Epoch 1, bases of version 1, session 1 open, an instance old enough to settle."""
        self.side.on_record(Mark(1, "m", 0))
        self.side.on_record(Config(1, 1, {"shop": {"eu": 5000, "us": 5000}}))
        self.side.on_record(Done(1, 1))
        self.list()
        self.write()
        self.pass_time(TIMES.settle_age_us)
        self.write()
        report = self.side.report()
        assert report is not None
        self.side.on_record(Welcome(1, 1, "eu", "me", 1, report.basis, {}))
        self.n = 1
        assert self.write()
        self.list()
        return self

    def lease(self, i: int, value: int, kind: Kind = Kind.GROW) -> None:
        self.n += 1
        self.side.on_record(LeaseRecord(1, self.n, key(i), "eu", 1, kind, value))

    def settle(self) -> None:
        self.list()
        while self.side.needs_write(POINT):
            self.write()
        self.list()

    def receipt(self, basis: int) -> None:
        self.side.on_record(Beat(1, self.now, {}, {"eu": ("me", basis)}))


def test_the_first_write_only_learns_the_instance() -> None:
    bench = Bench()
    bench.list()
    assert bench.side.report() is None
    assert not bench.write()
    report = bench.side.report()
    assert report is not None
    assert (report.session, report.settled, report.base_version) == (0, {}, 0)


def test_a_point_that_no_listing_names_is_not_written() -> None:
    bench = Bench().in_session()
    assert bench.side.prepare_write("elsewhere", "x") is None
    bench.side.on_listing(bench.side.listing_started(), ["elsewhere"], 3)
    assert bench.side.prepare_write(POINT, "x") is None


def test_of_a_point_that_no_listing_names_nothing_is_known_of_windows() -> None:
    bench = Bench().in_session()
    windows = bench.side.escrow
    windows.confirm(POINT, "instance")
    windows.was_told(POINT, "instance", windows.to_tell(POINT, 3, {}))
    assert windows.to_tell(POINT, 3, {}) == WindowNews("instance", [])
    bench.side.on_listing(bench.side.listing_started(), ["elsewhere"], 3)
    assert windows.to_tell(POINT, 3, {}) == WindowNews("", [], 3, {})


def test_a_write_carries_at_most_its_limit_and_vouches_only_at_the_end() -> None:
    bench = Bench().in_session()
    for i in range(7):
        bench.lease(i, 100)
    bench.redis.lose()
    bench.write()  # learns the new instance
    vouched = []
    while bench.side.needs_write(POINT) and len(vouched) < 10:
        write = bench.side.prepare_write(POINT, "x", 3)
        assert write is not None
        assert len(write.leases) <= 3
        vouched.append(write.all_known)
        bench.side.on_reply(POINT, bench.redis.write(bench.now, write))
    assert vouched[:3] == [False, False, True]


def test_a_settled_key_is_reported_until_its_receipt() -> None:
    bench = Bench().in_session()
    bench.lease(0, 7000)
    bench.settle()
    first, second = bench.side.report(), bench.side.report()
    assert first is not None
    assert second is not None
    assert first.settled == second.settled == {key(0): ((1, 2), 7000)}
    bench.receipt(first.basis)
    third = bench.side.report()
    assert third is not None
    assert third.settled == {}


def test_a_receipt_of_an_older_state_does_not_silence_a_newer_one() -> None:
    bench = Bench().in_session()
    bench.lease(0, 7000)
    bench.settle()
    old = bench.side.report()
    bench.lease(0, 10, Kind.KEEP)
    bench.settle()
    assert old is not None
    bench.receipt(old.basis)
    report = bench.side.report()
    assert report is not None
    assert report.settled == {key(0): ((1, 3), 10)}


def settled_of(bench: Bench) -> tuple[tuple[int, int], int] | None:
    report = bench.side.report()
    assert report is not None
    return report.settled.get(key(0))


def test_a_lease_that_falls_settles_only_when_what_nodes_leased_under_it_is_over() -> None:
    bench = Bench().in_session()
    bench.lease(0, 7000)
    bench.settle()
    bench.redis.enter(bench.now)
    assert bench.redis.may_be_leased(bench.now, key(0))
    bench.redis.note_lease(key(0), "shop", 7000)
    rests = []
    for number, (value, kind, falls) in enumerate(
        (
            (8000, Kind.GROW, False),
            (7000, Kind.KEEP, False),  # no less than what was leased under
            (200, Kind.KEEP, True),
            (500, Kind.GROW, True),  # what was leased under 7,000 may still be about
        ),
        start=3,
    ):
        bench.lease(0, value, kind)
        bench.lease(1, 100 + number)
        bench.list()
        bench.write()
        rests += bench.rests[len(rests) :]
        assert (settled_of(bench) == ((1, bench.n - 1), value)) is not falls
        assert bench.side._keys[key(1)].settled == ((1, bench.n), 100 + number)  # the other key does not wait
    assert len(rests) == 2
    bench.side.rested(rests[0]._replace(agent_id="a process before"))
    assert settled_of(bench) == ((1, 5), 7000)
    bench.side.rested(rests[0])
    assert settled_of(bench) == ((1, 7), 200)
    bench.side.rested(rests[1])
    assert settled_of(bench) == ((1, 9), 500)
    assert bench.side._points[POINT].resting == {}


def test_what_rests_is_bounded() -> None:
    bench = Bench().in_session()
    bench.lease(0, 9000)
    bench.settle()
    bench.redis.enter(bench.now)
    assert bench.redis.may_be_leased(bench.now, key(0))
    bench.redis.note_lease(key(0), "shop", 9000)
    for value in range(8000, 7950, -1):
        bench.lease(0, value, Kind.KEEP)
        bench.list()
        bench.write()
    assert len(bench.side._points[POINT].resting[key(0)].waiting) <= 16
    bench.side.rested(bench.rests[-1])
    assert settled_of(bench) == ((1, bench.n), 7951)


def test_a_report_has_room_for_so_many_keys_and_every_key_gets_its_turn() -> None:
    bench = Bench().in_session()
    for i in range(5):
        bench.side.set_want(key(i), Want(i + 1, i + 1))
    seen = [bench.side.report(2) for _ in range(3)]
    assert all(report is not None and len(report.wants) == 2 for report in seen)
    assert {name for report in seen if report for name in report.wants} == {key(i) for i in range(5)}


def test_a_new_leader_is_told_everything_again() -> None:
    bench = Bench().in_session()
    bench.lease(0, 7000)
    bench.side.set_want(key(1), Want(5, 5))
    bench.settle()
    report = bench.side.report()
    assert report is not None
    bench.receipt(report.basis)
    bench.side.on_record(Mark(2, "other", 5))
    again = bench.side.report()
    assert again is not None
    assert again.settled == {key(0): ((1, 2), 7000)}
    assert again.wants == {key(1): Want(5, 5)}


def test_a_want_of_nothing_is_forgotten_once_received() -> None:
    bench = Bench().in_session()
    bench.side.set_want(key(1), Want(5, 5))
    bench.side.set_want(key(1), Want(0, 0))
    report = bench.side.report()
    assert report is not None
    assert report.wants == {key(1): Want(0, 0)}
    bench.receipt(report.basis)
    assert bench.side.want(key(1)) is None


def test_a_key_that_is_back_at_base_is_forgotten_after_its_receipt() -> None:
    bench = Bench().in_session()
    bench.lease(0, 7000)
    bench.lease(0, BASE)
    bench.settle()
    assert bench.side.shares() == {key(0): BASE}
    report = bench.side.report()
    assert report is not None
    bench.receipt(report.basis)
    assert bench.side.shares() == {}
    bench.side.on_record(LeaseRecord(1, 2, key(0), "eu", 1, Kind.GROW, 7000))  # a repeat from its earlier life
    assert bench.side.shares() == {}


def test_a_release_only_lowers() -> None:
    bench = Bench().in_session()
    bench.side.release(key(0), 6000)
    assert bench.side.shares() == {}
    bench.side.release(key(0), 4000)
    bench.side.release(key(0), 4500)
    assert bench.side.shares() == {key(0): 4000}


def test_at_rest_no_consent_is_given_before_the_session_is_open() -> None:
    """The share would dip from the base to the floor for a round trip."""
    bench = Bench().in_session()
    bench.pass_time(2 * TIMES.consent_us)
    bench.write()
    bench.side.on_record(Beat(1, bench.now, {}))
    write = bench.side.prepare_write(POINT, "x")
    assert write is not None
    assert not write.extend


def test_a_base_between_config_and_done_is_the_smaller_one() -> None:
    bench = Bench().in_session()
    assert (bench.side.base_version, bench.side.bases) == (3, {"shop": 5000})
    bench.side.on_record(Config(1, 2, {"shop": {"eu": 7000, "us": 3000}, "mail": {"eu": 1000}}))
    assert (bench.side.base_version, bench.side.bases) == (4, {"shop": 5000, "mail": 0})
    bench.side.on_record(Done(1, 2))
    assert (bench.side.base_version, bench.side.bases) == (5, {"shop": 7000, "mail": 1000})
    bench.side.on_record(Config(1, 3, {"mail": {"eu": 2000}}))
    assert (bench.side.base_version, bench.side.bases) == (6, {"shop": 0, "mail": 1000})


def test_no_base_settles_while_a_node_may_have_an_older_one() -> None:
    bench = Bench().in_session()
    assert bench.side.settled_base_version == 3
    bench.side.on_record(Config(1, 2, {"shop": {"eu": 1000, "us": 9000}}))
    bench.write()
    for nodes, settled in ((None, 3), (3, 3), (4, 4)):
        bench.side.on_listing(bench.side.listing_started(), [POINT], nodes)
        assert bench.side.settled_base_version == settled


def test_marks_are_bounded_and_an_old_basis_renews_nothing() -> None:
    bench = Bench().in_session()
    first = bench.side.report()
    assert first is not None
    for _ in range(MARKS_KEPT + 1):
        bench.side.report()
    bench.pass_time(SECOND)
    before = bench.side.prepare_write(POINT, "x")
    bench.side.on_record(Beat(1, bench.now, {"eu": (1, first.basis)}))
    after = bench.side.prepare_write(POINT, "x")
    assert before is not None
    assert after is not None
    assert before.until_us == after.until_us


def test_a_restart_keeps_the_wants_and_nothing_else() -> None:
    bench = Bench().in_session()
    bench.lease(0, 7000)
    bench.side.set_want(key(1), Want(5, 5))
    token = bench.side.listing_started()
    bench.side.restart("again")
    bench.side.on_listing(token, [POINT], 3)
    side = bench.side
    assert (side.agent_id, side.session, side.epoch, side.points, side.shares()) == ("again", 0, 0, frozenset(), {})
    assert side.want(key(1)) == Want(5, 5)
