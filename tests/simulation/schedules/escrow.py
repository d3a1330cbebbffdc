"""150 on: windows in escrow.  Three regions, a window of 4 sessions; what is admitted is counted in tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from global_sync.protocol.escrow import KEPT_AFTER_END_MS
from global_sync.protocol.ledger import after_a_lost_log
from global_sync.protocol.messages import Done, Record, WindowAsk, WindowGrant
from global_sync.protocol.region_log import CLOCKS_APART_MS
from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.share import WINDOW_POOL, window_static

from ..cast import Cast
from ..hand import EVEN, K0, SKEWED, Hand
from ..spending import LIMIT, Till
from . import schedule

WINDOW_MS = 4
STEP = 100
"""Share units of one token, over the three that come first."""


class EscrowHand(Hand):
    """The set-up runs in the first window; the schedule begins in a later one."""

    def __init__(self, cast: Cast, **kinds: Any) -> None:
        self.till = Till(WINDOW_MS)
        super().__init__(cast, **kinds)
        self.next_window()

    def next_window(self) -> None:
        """On to a window's beginning, with everyone alive."""
        end = (self.now // (1000 * WINDOW_MS) + 1) * 1000 * WINDOW_MS
        self.run(end - self.now + 10)

    def ask(self, i: int, wanted: int = WINDOW_POOL, least: int = STEP) -> None:
        """The region asks for so much in all, at least so much at a time, and its report arrives."""
        window, end_ms = self.till.window_at(self.now, self.copy(i, self.plants[i].shards[0].primary))
        held = self.agents[i].escrow.held(K0, window)
        self.agents[i].ask(K0, WindowAsk(window, end_ms, held, wanted, least))
        self.report(i)

    def grant(self, leader: Any = None) -> list[Record]:
        """What the leader says of windows now (not put into the log)."""
        return list((leader or self.leader).grant_windows(self.now, self.now // 1000))

    def news(self, i: int) -> WindowNews:
        agent = self.agents[i]
        news: WindowNews = agent.escrow.to_tell("0/0", agent.base_version, agent.bases_since)
        return news

    def tell(self, i: int, news: WindowNews | None = None) -> None:
        """The region's agent tells its point."""
        news = news or self.news(i)
        reply = self.till.tell(self.now, self.plants[i].shards[0], news)
        self.agents[i].escrow.was_told("0/0", reply.instance, news)

    def serve(self, i: int, wanted: int = WINDOW_POOL, rounds: int = 12) -> None:
        """The region asks until it has what it wants, or nothing more is to be had."""
        for _ in range(rounds):
            self.ask(i, wanted)
            self.put(self.grant())
            self.follow(self.leader)
            self.catch_up(i)
            self.tell(i)

    def spend(self, *regions: int) -> list[int]:
        """Each region spends all that it can."""
        return [self.till.spend_all(self.now, self.plants[i], K0) for i in regions]

    def restart(self, i: int, counts: bool = False) -> None:
        """The region's Redis restarts, with ``counts`` with its counts, as a promoted replica has them."""
        shard = self.plants[i].shards[0]
        shard.copy.lose()
        if not counts:
            self.till.lose_counts(shard)

    def begin_anew(self) -> None:
        """The log is lost, and every region begins with an empty Redis and one that says so."""
        self.log[:] = [after_a_lost_log(self.now // 1000)]
        for i in range(self.count):
            for shard in self.plants[i].shards:
                shard.copy.lose()
                self.till.lose_counts(shard)
            self.new_agent(i)
        self.leader = self.lead(self.candidate())
        self.configure(1, EVEN)
        self.run(240)

    def judge(self, place: str) -> list[str]:
        excess = self.till.excess()
        self.require(not excess, f"{place}: {excess}")
        found = [violation for side in self.sides for violation in side.evidence.last]
        self.require(not found, f"{place}: {found[:1]}")
        return self.bad


@schedule(150)
def all_that_is_granted_of_a_window_fits_into_its_pool(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    for _ in range(12):
        for i in range(3):
            h.serve(i, rounds=1)
    spent = h.spend(0, 1, 2)
    h.require(sum(spent) >= LIMIT - 6, f"{spent} of {LIMIT}: what is asked for is not granted")
    return h.judge("all ask for all")


@schedule(151)
def what_was_granted_counts_before_it_is_in_the_log(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    late: list[Record] = []
    for i in range(3):
        h.ask(i, least=WINDOW_POOL)
        late += h.grant()
        h.ask(i, wanted=0)  # it has given up by then
    h.put(late)
    for i in range(3):
        h.catch_up(i)
        h.tell(i)
    h.spend(0, 1, 2)
    return h.judge("late appends")


@schedule(152)
def a_new_leader_counts_what_the_old_one_granted(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0)
    h.leader = h.lead(h.candidate())
    h.run(40)
    h.serve(1)
    h.spend(0, 1, 2)
    return h.judge("after a takeover")


@schedule(153)
def what_a_deposed_leader_grants_is_void(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    zombie = h.leader
    h.ask(0)
    h.leader = h.lead(h.candidate())
    h.run(40)
    h.serve(1)
    h.put(h.grant(zombie))
    h.catch_up(0)
    h.tell(0)
    for _ in range(12):
        h.agents[0].ask(K0, None)
        h.ask(0)
        report = h.agents[0].report()
        zombie.on_report(h.now, replace(report, session=zombie.counts.ledger.current["r0"]))
        h.put(h.grant(zombie))
        h.catch_up(0)
        h.tell(0)
    h.spend(0, 1, 2)
    return h.judge("a zombie grants")


@schedule(154)
def a_grant_that_comes_twice_is_one_grant(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0, 2500)
    h.put([record for record in h.log if isinstance(record, WindowGrant)])
    h.catch_up(0)
    h.tell(0)
    h.serve(1)
    h.spend(0, 1, 2)
    return h.judge("repeats")


@schedule(155)
def a_snapshot_keeps_what_was_granted(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0)
    first = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    h.leader = h.lead(h.candidate(first))
    h.run(40)
    h.serve(1)
    h.spend(0, 1, 2)
    return h.judge("from a snapshot")


@schedule(156)
def nothing_is_granted_while_a_snapshot_is_not_back(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.ask(0)
    parts = list(h.leader.snapshot(h.now))
    for _ in range(8):
        h.put(h.grant())
        h.catch_up(0)
        h.ask(0)
    first = len(h.log)
    h.put(parts)
    h.follow(h.leader)
    h.tell(0)
    h.leader = h.lead(h.candidate(first))
    h.run(40)
    h.serve(1)
    h.spend(0, 1, 2)
    return h.judge("granted behind a snapshot's back")


@schedule(157)
def a_window_that_was_forgotten_is_not_granted_again(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0)
    h.spend(0)
    wall_ms = h.now // 1000
    h.leader.grant_windows(h.now, wall_ms + WINDOW_MS + KEPT_AFTER_END_MS)  # a clock that is ahead
    first = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    h.leader = h.lead(h.candidate(first))  # by a clock that is right
    h.run(40)
    h.serve(1)
    h.spend(1, 2)
    return h.judge("forgotten")


@schedule(158)
def a_count_that_may_be_lost_counts_as_used(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0)
    h.spend(0)
    h.restart(0)
    h.run(80)
    h.tell(0)
    h.spend(0, 1, 2)
    return h.judge("a Redis came back empty")


@schedule(159)
def more_is_to_be_had_after_a_count_was_lost(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0, 2000)
    spent = h.spend(0)[0]
    h.restart(0)
    h.run(80)
    h.tell(0)
    h.require(h.spend(0) == [0], "what may have been used is used again")
    h.serve(0)
    h.require(h.spend(0)[0] > 10, f"nothing more after {spent}")
    h.spend(1, 2)
    return h.judge("new chunks")


@schedule(160)
def counts_that_were_kept_go_on(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0, 2000)
    h.till.spend(h.now, h.plants[0], 0, K0, 5)
    h.restart(0, counts=True)
    h.run(80)
    h.tell(0)
    h.require(h.spend(0)[0] > 20, "a promoted replica does not go on where it was")
    h.serve(1)
    h.spend(1, 2)
    return h.judge("promoted")


@schedule(161)
def who_is_behind_in_the_log_tells_a_lost_variable_nothing(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0, 500)
    behind, read = h.agents[0], h.read[0]
    h.new_agent(0)
    h.run(200)
    h.serve(0)
    h.spend(0)
    successor, position = h.agents[0], h.read[0]
    h.restart(0)
    h.agents[0], h.read[0] = behind, read
    h.sync(0)  # learns the new instance, and has read nothing since
    h.tell(0)
    h.tell(0)
    h.agents[0], h.read[0] = successor, position
    h.run(80)
    h.tell(0)
    h.spend(0, 1, 2)
    return h.judge("told by who is behind")


@schedule(162)
def what_was_meant_for_another_instance_is_not_taken(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0, 500)
    window, end_ms = h.till.window_at(h.now, h.copy(0))
    h.agents[0].ask(K0, WindowAsk(window, end_ms, h.agents[0].escrow.held(K0, window), WINDOW_POOL, STEP))
    h.report(0)
    h.put(h.grant())
    h.catch_up(0)
    late = h.news(0)
    h.serve(0)
    h.spend(0)
    h.restart(0)
    h.sync(0)  # which gives the new instance its name
    h.tell(0, late)
    h.run(80)
    h.tell(0)
    h.spend(0, 1, 2)
    return h.judge("a late word")


@schedule(163)
def a_grant_is_of_one_window(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0)
    h.next_window()
    h.serve(1)
    h.tell(0)
    h.spend(0, 1, 2)
    return h.judge("the next window")


@schedule(164)
def a_base_that_was_raised_counts_from_the_next_window_on(cast: Cast) -> list[str]:
    h = EscrowHand(cast, bases=SKEWED)
    h.tell(0)
    h.serve(2)
    h.spend(0, 2)
    h.configure(2, (1700, 6600, 1700))
    h.run(400)
    h.require(h.share(1) == 6600, "the base was not raised")
    for i in range(3):
        h.tell(i)
    h.spend(0, 1, 2)
    h.judge("raised within a window")
    h.next_window()
    h.tell(1)
    spent = h.spend(1)[0]
    h.require(spent >= window_static(6600) // STEP, f"{spent} in the next window")
    return h.judge("next window")


@schedule(165)
def who_vouches_for_bases_vouches_for_their_version_alone(cast: Cast) -> list[str]:
    h = EscrowHand(cast, bases=SKEWED)
    h.serve(2)
    h.spend(0, 2)
    h.till.spend(h.now, h.plants[1], 0, K0)
    old = h.news(1)
    old = replace(old, base_version=h.agents[1].base_version, since=h.agents[1].bases_since)
    h.configure(2, (1700, 6600, 1700))
    h.run(400)
    h.restart(1, counts=True)
    h.sync(1)
    h.tell(1, old)
    h.spend(0, 1, 2)
    return h.judge("an old word for new bases")


@schedule(166)
def a_grant_that_got_lost_is_said_again(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.ask(0)
    h.require(bool(h.grant()), "nothing was granted")
    h.run(100)
    h.require(bool(h.put(h.grant())), "it is not said again")
    h.catch_up(0)
    h.tell(0)
    spent = h.spend(0)[0]
    h.require(spent > window_static(EVEN[0]) // STEP + 1, f"{spent} of the lost chunk")
    return h.judge("said again")


@schedule(167)
def a_log_older_than_windows_is_vouched_for_from_now_on(cast: Cast) -> list[str]:
    h = EscrowHand(cast, bases=SKEWED)
    h.tell(0)
    h.serve(2)
    h.spend(0, 2)
    h.configure(2, (1700, 6600, 1700))
    h.run(400)
    h.log[:] = [replace(record, since={}) if isinstance(record, Done) else record for record in h.log]
    h.leader = h.lead(h.candidate())
    for i in range(3):
        h.new_agent(i)
    h.run(500)
    for i in range(3):
        h.tell(i)
    h.spend(0, 1, 2)
    h.judge("the window in which the base was raised")
    since = [agent.bases_since.get("shop", 0) for agent in h.agents]
    h.require(min(since) > CLOCKS_APART_MS, f"vouched for since {since}")
    h.next_window()
    h.spend(0, 1, 2)
    return h.judge("next window")


@schedule(168)
def of_windows_older_than_a_log_after_a_lost_one_nothing_is_granted(cast: Cast) -> list[str]:
    h = EscrowHand(cast)
    h.serve(0)
    h.spend(0)
    h.begin_anew()
    for i in range(3):
        h.serve(i)
    h.spend(0, 1, 2)
    h.judge("the window in which the log was lost")
    first = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    h.leader = h.lead(h.candidate(first))
    h.run(40)
    for i in range(3):
        h.serve(i)
    h.spend(0, 1, 2)
    h.judge("after a snapshot of the new log")
    since = [agent.bases_since.get("shop", 0) for agent in h.agents]
    h.require(min(since) > CLOCKS_APART_MS, f"the new log vouches for bases since {since}")
    h.next_window()
    for _ in range(12):
        for i in range(3):
            h.serve(i, rounds=1)
    spent = h.spend(0, 1, 2)
    h.require(sum(spent) >= LIMIT - 6 - 3 * window_static(EVEN[0]) // STEP, f"{spent} in the next window")
    return h.judge("the next window")
