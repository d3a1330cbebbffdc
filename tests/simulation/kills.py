"""For each rule one directed schedule at least that notices when it is broken."""

from __future__ import annotations

from dataclasses import dataclass

from .mutants import MUTANTS
from .schedules import SCHEDULES

KILLED_BY = {
    "ack_old_ver": 47,
    "ack_on_read": 70,
    "act_on_append": 74,
    "base_nowait": 42,
    "base_raise_early": 40,
    "base_unacked": 41,
    "cfg_old": 46,
    "con_from_rx": 9,
    "con_no_drift": 10,
    "cver_on_read": 42,
    "done_early": 41,
    "done_sum_only": 44,
    "done_total_only": 45,
    "echo_any_ep": 7,
    "echo_unsettled": 4,
    "exempt_more": 52,
    "ext_always": 3,
    "free_now": 12,
    "grow_ignores_free": 5,
    "hello_once": 80,
    "keep_as_grow": 63,
    "keep_raises": 63,
    "last_only": 69,
    "new_ses_drops": 61,
    "no_age": 23,
    "no_gap": 22,
    "nocas": 27,
    "nodepose": 71,
    "nodrift": 75,
    "nofence": 64,
    "noinst": 24,
    "nomono": 66,
    "noses": 79,
    "nowait": 69,
    "old_ses_at_once": 107,
    "old_ses_on_report": 82,
    "old_ses_void": 62,
    "fits_bound": 2,
    "fits_unchanged": 56,
    "no_exempt": 51,
    "renew_one_key": 11,
    "renew_unchecked": 8,
    "rest_once": 15,
    "restart_g": 20,
    "same_epoch": 65,
    "ses0_writes": 55,
    "ses0_writes_base_order": 53,
    "short_age": 33,
    "short_end": 75,
    "snap_base": 48,
    "snap_last": 72,
    "snap_open": 73,
    "stale_now_coord": 76,
    "stale_ses": 68,
    "takeover_trusts": 6,
    "tau_late": 10,
    "until_from_reply": 32,
    "until_other_inst": 30,
    "vouch_early": 26,
    "one_point": 90,
    "listing_any": 91,
    "no_rest": 101,
    "no_watermark": 94,
    "release_stays": 97,
    "welcome_lost": 81,
    "welc_unchecked": 60,
    "gone_at_once": 131,
    "gone_forgotten": 132,
    "gone_for_now": 146,
    "gone_same_version": 148,
    "gone_unread": 147,
    "gone_swapped": 133,
    "snap_first_part": 140,
    "snap_repeated": 141,
    "forget_numbers": 142,
    "answers_stand_for_nothing": 143,
    "late_answers": 144,
    "no_consent": 2,
    "base_order": 129,
    "naive_refill": 122,
    "fallback_at_base": 120,
    "nodes_forgotten": 121,
    "leases_live_on": 124,
    "nodes_not_kept": 128,
    "own_library_only": 123,
    "nodes_unheard": 125,
    "nodes_at_once": 126,
    "pool_unchecked": 150,
    "grants_unbooked": 151,
    "grants_forgotten": 152,
    "grants_of_any_epoch": 153,
    "grants_add_up": 154,
    "snap_without_windows": 155,
    "grants_while_snapping": 156,
    "ended_forgotten": 157,
    "lost_is_empty": 158,
    "nothing_before": 158,
    "told_unconfirmed": 161,
    "told_any_instance": 162,
    "grants_of_any_window": 163,
    "base_raised_at_once": 164,
    "vouch_any_version": 165,
    "grants_said_once": 166,
    "grants_older_than_the_log": 168,
    "snap_without_beginning": 168,
    "since_ever": 167,
    "since_never": 167,
    "floor_uncounted": 170,
    "floor_raised_early": 170,
    "floor_unacked": 171,
    "floor_unused": 172,
    "snap_without_floors": 173,
    "floor_order": 174,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A broken rule, and whether the schedule (its number, its name in words) notices it."""

    mutant: str
    schedule: int
    name: str
    killed: bool


def kill(mutant: str) -> Row:
    number = KILLED_BY[mutant]
    schedule = SCHEDULES[number]
    return Row(mutant, number, schedule.__name__.replace("_", " "), bool(schedule(MUTANTS[mutant])))


def table() -> list[Row]:
    """By schedule."""
    return [kill(mutant) for mutant in sorted(KILLED_BY, key=lambda name: (KILLED_BY[name], name))]
