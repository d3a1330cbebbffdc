"""The directed schedules, and for each rule one schedule at least that notices when it is broken."""

from __future__ import annotations

import pytest

from .cast import Cast
from .kills import KILLED_BY, kill
from .mutants import MUTANTS
from .schedules import SCHEDULES


@pytest.mark.parametrize("number", sorted(SCHEDULES), ids=lambda n: f"{n:02d}-{SCHEDULES[n].__name__}")
def test_schedule(number: int) -> None:
    assert SCHEDULES[number](Cast()) == []


@pytest.mark.parametrize("mutant", sorted(KILLED_BY))
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    assert kill(mutant).killed


def test_every_broken_rule_has_a_schedule() -> None:
    assert KILLED_BY.keys() == MUTANTS.keys()


DESIGNED = """
    echo_unsettled con_from_rx con_no_drift tau_late free_now renew_unchecked renew_one_key no_exempt exempt_more
    grow_ignores_free takeover_trusts echo_any_ep ext_always no_consent restart_g no_gap no_age short_age noinst
    vouch_early nocas ses0_writes ses0_writes_base_order base_order until_from_reply until_other_inst
    base_raise_early base_unacked base_nowait cver_on_read done_early done_sum_only done_total_only ack_old_ver
    snap_base cfg_old welc_unchecked nofence nomono noses nodepose keep_raises keep_as_grow ack_on_read same_epoch
    last_only old_ses_void new_ses_drops stale_ses hello_once nowait nodrift short_end act_on_append snap_open
    snap_last stale_now_coord
"""


def test_nothing_that_the_protocol_was_designed_with_is_left_out() -> None:
    numbers = {*range(1, 15), *range(20, 34), *range(40, 55), *range(60, 81)}
    assert numbers - SCHEDULES.keys() == set()
    assert set(DESIGNED.split()) - MUTANTS.keys() == set()
