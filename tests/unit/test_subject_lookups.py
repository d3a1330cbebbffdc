"""What is stored of clients reaches their checks: looked up once, kept for a while, never waited for in vain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer, Check
from regional_limiter.model.errors import InvalidCheck, StoreUnavailable
from regional_limiter.store.subjects import LookedUp, SubjectFound, SubjectWrite
from regional_limiter.subject_cache import SubjectCache
from regional_limiter.together import Asked
from tests.unit.limiter_store import PromptStore, blob_of, check, rule, running

GOLD, SILVER = b'{"tier":"gold"}', b'{"tier":"silver"}'
RULES = blob_of(
    rule("for-free", match={"tier": "free"}),
    rule("for-gold", match={"tier": "gold"}),
    rule("sized", match={"tier": "sized"}, cost={"attribute": "size", "per": 1}),
    defaults={"tier": "free"},
    stored_subjects={"keep": "60s"},
)
PATIENT_S = 100.0
HASTY_S = 0.001


@dataclass
class Knowing(PromptStore):
    """``answers``: at once, or when ``tell`` is called."""

    knows: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    waiting: list[tuple[str, LookedUp]] = field(default_factory=list)
    answers: bool = True
    filled: bool = True
    silent: bool = False

    def look_up(self, domain: str, client_key: str, done: LookedUp) -> None:
        self.asked.append(client_key)
        self.waiting.append((client_key, done))
        if self.answers:
            self.tell()

    def tell(self) -> None:
        waiting, self.waiting = self.waiting, []
        for client_key, done in waiting:
            found = SubjectFound(self.knows.get(client_key, b""), self.filled)
            done(StoreUnavailable("timeout") if self.silent else found)

    async def subject_positions(self) -> list[int | None]:
        raise AssertionError("no node asks this")

    async def write_subjects(self, group: int, subjects: Sequence[SubjectWrite], moved: Any = None) -> bool:
        raise AssertionError("no node writes")


async def rules_met(limiter: Limiter, **more: Any) -> str | None:
    return (await limiter.check(check(**more))).rule


def aged(limiter: Limiter, by_s: float) -> None:
    """Time passes for what the limiter keeps."""
    before = limiter._subjects._now_us
    limiter._subjects._now_us = lambda: before() + int(by_s * 1e6)


async def test_what_is_stored_counts_as_if_the_check_had_named_it_and_what_it_names_wins(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD})
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        assert await rules_met(limiter, client="acme") == "for-gold"
        assert await rules_met(limiter, client="stranger") == "for-free"
        assert await rules_met(limiter, client="acme", attributes={"tier": "free"}) == "for-free"
        told = await limiter.explain(check(client="acme"))
        assert told.attributes["tier"] == "gold"


async def test_a_client_is_looked_up_once_also_one_of_whom_nothing_is_known(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD})
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        same = check(client="acme")
        for _ in range(3):
            assert (await limiter.check(same)).rule == "for-gold"
            await rules_met(limiter, client="stranger")
        assert store.asked == ["acme", "stranger"]


async def test_checks_that_come_together_ask_once_and_all_wait_for_it(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD}, answers=False)
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        answers: list[Any] = []
        for _ in range(5):
            limiter.submit(check(client="acme"), answers.append)
        assert (store.asked, answers) == (["acme"], [])
        store.tell()
        assert [answer.rule for answer in answers] == ["for-gold"] * 5


async def test_who_is_silent_is_not_waited_for_and_what_was_known_goes_on(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD})
    async with running(store, tmp_path, RULES, deadline_s=HASTY_S) as limiter:
        assert await rules_met(limiter, client="acme") == "for-gold"
        store.answers = False
        aged(limiter, 61)
        assert await rules_met(limiter, client="acme") == "for-gold"
        assert await rules_met(limiter, client="new") == "for-free"
        counts = limiter._subjects.counts
        assert (counts.unanswered, counts.stale) == (2, 1)
        store.knows["new"] = GOLD
        store.tell()  # late, but kept
        assert await rules_met(limiter, client="new") == "for-gold"


async def test_a_store_that_refuses_is_as_good_as_silent_and_is_asked_again(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD}, silent=True)
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        assert await rules_met(limiter, client="acme") == "for-free"
        store.silent = False
        assert await rules_met(limiter, client="acme") == "for-gold"


async def test_what_has_changed_is_seen_when_its_time_is_over_and_busy_clients_never_wait(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD})
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        assert await rules_met(limiter, client="acme") == "for-gold"
        store.knows["acme"] = SILVER
        aged(limiter, 31)  # half of it: looked up beside the check
        assert await rules_met(limiter, client="acme") == "for-gold"
        assert await rules_met(limiter, client="acme") is None
        store.knows["acme"] = GOLD
        aged(limiter, 61)
        assert await rules_met(limiter, client="acme") == "for-gold"
        assert len(store.asked) == 3


async def test_a_store_that_is_being_filled_is_not_believed_for_long(tmp_path: Path) -> None:
    store = Knowing(filled=False)
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        assert await rules_met(limiter, client="acme") == "for-free"
        store.knows["acme"], store.filled = GOLD, True
        assert await rules_met(limiter, client="acme") == "for-free"
        aged(limiter, 1.1)
        assert await rules_met(limiter, client="acme") == "for-gold"
        store.knows.clear()
        store.filled = False  # its primary came back without its keys
        aged(limiter, 61)
        assert await rules_met(limiter, client="acme") == "for-gold"


async def test_a_wrong_check_is_refused_before_anybody_is_asked_and_a_wrong_subject_by_callback(
    tmp_path: Path,
) -> None:
    store = Knowing(knows={"odd": b'{"tier":"sized","size":"large"}', "broken": b'{"tier":7}'}, answers=False)
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        answers: list[Any] = []
        with pytest.raises(InvalidCheck):
            limiter.submit(check(cost=-1), answers.append)
        assert store.asked == []
        limiter.submit(check(client="odd"), answers.append)
        limiter.submit(check(client="broken"), answers.append)
        store.tell()
        assert isinstance(answers[0], InvalidCheck)
        assert answers[0].field == "size"
        assert answers[1].rule == "for-free"


async def test_a_refund_goes_to_the_bucket_that_was_charged(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD}, answers=False)
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        refund = asyncio.create_task(limiter.refund(check(client="acme")))
        await asyncio.sleep(0)
        store.tell()
        await refund
        assert [call.key.rpartition(":")[0][-8:] for calls, _ in store.refunds for call in calls] == ["for-gold"]


async def test_descriptors_of_one_request_wait_for_all_their_clients(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD}, answers=False)
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        told: list[Any] = []
        asked = [Asked(check(client="acme")), Asked(check(client="stranger")), Asked(check(client="acme"))]
        limiter.submit_together(asked, told.append)
        assert (store.asked, told) == (["acme", "stranger"], [])
        store.tell()
        assert [one.rule for one in told[0].each] == ["for-gold", "for-free", "for-gold"]


async def test_domains_whose_sets_do_not_say_so_ask_nobody(tmp_path: Path) -> None:
    store = Knowing(knows={"alice": GOLD})
    rules = blob_of(rule("for-gold", match={"tier": "gold"}))
    async with running(store, tmp_path, rules) as limiter:
        assert await rules_met(limiter) is None
        assert store.asked == []


async def test_what_is_known_never_makes_a_check_too_large(tmp_path: Path) -> None:
    store = Knowing(knows={"acme": GOLD})
    many = {f"a{n}": "x" for n in range(62)}
    async with running(store, tmp_path, RULES, deadline_s=PATIENT_S) as limiter:
        answer: Answer = await limiter.check(Check("default", {"client_key": "acme", "resource": "/", **many}))
        assert answer.rule == "for-free"  # no room for more attributes


def test_the_cache_is_bounded_and_shares_what_is_the_same() -> None:
    cache = SubjectCache(clients_most=100, characters_most=1_000)
    for number in range(1_000):
        cache.put("d", f"c{number}", GOLD, number)
    assert len(cache) == 100
    assert cache.get("d", "c0") is None
    first, last = cache.get("d", "c900"), cache.get("d", "c999")
    assert first is not None
    assert last is not None
    assert first.attributes is last.attributes
    for number in range(10):
        cache.put("d", "long" * 100 + str(number), GOLD, number)
    assert len(cache) == 2
    with pytest.raises(ValueError, match="text by text"):
        cache.put("d", "odd", json.dumps({"tier": 7}).encode(), 0)
