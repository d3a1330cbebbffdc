"""What a rehearsal found, as one plain JSON document: the table and the page show the same.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from regional_limiter.model.keys import plain_identity
from regional_limiter.model.rule import Mode, RuleSet, Scope
from regional_limiter.rules import limit_in_words
from services.rehearsal.reading import LineCounts
from services.rehearsal.rehearsal import Difference, Rehearsal, Rehearsed
from services.rehearsal.replay import Identity
from services.rehearsal.suggest import Suggestion
from services.rehearsal.tally import Keys

KEYS_SHOWN = 20


def report(
    rehearsal: Rehearsal,
    lines: LineCounts,
    format_name: str,
    notes: list[str],
    salt: bytes,
    keys_shown: int = KEYS_SHOWN,
    suggested: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Times are ISO 8601 in UTC, to the millisecond; ``percent`` is of checks.

    ``salt``: random, so that the hashes of a rule's hashed keys hold within this report only.
    """
    proposed = rehearsal.proposed
    shown: dict[str, Any] = {
        "domain": proposed.rule_set.domain,
        "format": format_name,
        "from": iso(rehearsal.from_ms),
        "until": iso(rehearsal.until_ms) if rehearsal.from_ms is not None else None,
        "lines": _lines(lines, rehearsal),
        **_outcome(proposed, keys_shown, salt),
        "notes": [*_notes(rehearsal, lines), *notes],
    }
    if rehearsal.current is not None and rehearsal.difference is not None:
        shown["current"] = _outcome(rehearsal.current, keys_shown, salt)
        shown["difference"] = _difference(rehearsal.difference, proposed, rehearsal.current, keys_shown, salt)
    if suggested is not None:
        shown["suggested"] = suggested
    return shown


def suggested_limits(percent_most: float, suggestions: Iterable[Suggestion]) -> dict[str, Any]:
    """The part of the report that ``--suggest`` asks for."""
    return {
        "percent": percent_most,
        "rules": [
            {
                "rule": one.rule.id,
                "limit": limit_in_words(one.rule),
                "checks": one.checks,
                "suggested": one.fields,
                "suggested_in_words": one.in_words,
                "denied": one.denied,
                "denied_percent": percent(one.denied, one.checks) if one.denied is not None else None,
                "problem": one.problem,
            }
            for one in suggestions
        ],
    }


def iso(time_ms: int | None) -> str | None:
    """``2026-11-30T12:00:00.000Z``; None stays."""
    if time_ms is None:
        return None
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 4) if whole else 0.0


def _lines(lines: LineCounts, rehearsal: Rehearsal) -> dict[str, Any]:
    refused = lines.refused + rehearsal.refused
    return {
        "read": lines.read,
        "unreadable": lines.unreadable.total(),
        "unreadable_because": dict(lines.unreadable.most_common()),
        "unreadable_examples": [
            {"file": file, "line": number, "problem": problem, "text": text}
            for file, number, problem, text in lines.examples
        ],
        "refused": refused.total(),
        "refused_because": dict(refused.most_common(10)),
        "late": lines.late,
        "late_most_ms": lines.late_most_ms,
        "limited_then": lines.limited_then,
    }


def _outcome(one: Rehearsed, keys_shown: int, salt: bytes) -> dict[str, Any]:
    tally, rules = one.tally, one.rule_set.rules
    keys_denied = tally.keys.denied_by_rule()
    return {
        "checks": tally.checks,
        "allowed": tally.checks - tally.denied,
        "denied": tally.denied,
        "denied_percent": percent(tally.denied, tally.checks),
        "no_rule": tally.no_rule,
        "by_rule": [
            {
                "rule": rule.id,
                "limit": limit_in_words(rule),
                "mode": rule.mode.value,
                "checks": counted.checks,
                "denied": counted.denied,
                "denied_percent": percent(counted.denied, counted.checks),
                "denied_alone": counted.alone,
                "keys_denied": keys_denied.get(place, 0),
                "not_rehearsed": one.replay.not_rehearsed.get(rule.id),
            }
            for place, (rule, counted) in enumerate(zip(rules, tally.by_rule, strict=True))
        ],
        "by_key": _keys(tally.keys, one.rule_set, keys_shown, salt),
        "over_time": {
            "step_ms": tally.over_time.step_ms,
            "steps": [
                {
                    "at": iso(start_ms),
                    "checks": counted.checks,
                    "denied": counted.denied,
                    "by_rule": {rules[place].id: count for place, count in sorted(counted.by_rule.items())},
                }
                for start_ms, counted in tally.over_time.bins()
            ],
        },
        "keys_forgotten": tally.keys.forgotten,
        "buckets_merged": one.replay.buckets.merged,
    }


def _keys(keys: Keys, rule_set: RuleSet, most: int, salt: bytes) -> list[dict[str, Any]]:
    return [
        {
            "rule": rule_set.rules[place].id,
            "key": key_shown(rule_set, place, identity, salt),
            "checks": checks,
            "denied": denied,
            "denied_percent": percent(denied, checks),
        }
        for place, identity, checks, denied in keys.most_denied(most)
    ]


def key_shown(rule_set: RuleSet, place: int, identity: Identity, salt: bytes) -> Mapping[str, str | None]:
    """The attributes of a key; of a rule that hashes its keys, only a hash."""
    rule = rule_set.rules[place]
    if rule.hash_key:
        digest = blake2b(plain_identity(identity).encode(), digest_size=8, key=salt).hexdigest()
        return {"#": digest}
    return dict(zip(rule.key, identity, strict=True))


def _difference(
    found: Difference, proposed: Rehearsed, current: Rehearsed, keys_shown: int, salt: bytes
) -> dict[str, Any]:
    checks = proposed.tally.checks
    before = {rule.id: place for place, rule in enumerate(current.rule_set.rules)}
    after = {rule.id: place for place, rule in enumerate(proposed.rule_set.rules)}
    return {
        "newly_denied": found.newly_denied,
        "newly_denied_percent": percent(found.newly_denied, checks),
        "newly_allowed": found.newly_allowed,
        "newly_allowed_percent": percent(found.newly_allowed, checks),
        "denied_by_both": found.denied_by_both,
        "by_rule": [
            {
                "rule": rule_id,
                "current": _limit_of(current, before.get(rule_id)),
                "proposed": _limit_of(proposed, after.get(rule_id)),
                "denied_current": _denied_of(current, before.get(rule_id)),
                "denied_proposed": _denied_of(proposed, after.get(rule_id)),
            }
            for rule_id in dict.fromkeys([*before, *after])
        ],
        "keys_newly_denied": _keys_changed(found.keys_denied, proposed.rule_set, keys_shown, salt),
        "keys_newly_allowed": _keys_changed(found.keys_allowed, current.rule_set, keys_shown, salt),
    }


def _keys_changed(keys: Keys, rule_set: RuleSet, most: int, salt: bytes) -> list[dict[str, Any]]:
    return [
        {"rule": rule_set.rules[place].id, "key": key_shown(rule_set, place, identity, salt), "checks": count}
        for place, identity, _, count in keys.most_denied(most)
    ]


def _limit_of(one: Rehearsed, place: int | None) -> str | None:
    return limit_in_words(one.rule_set.rules[place]) if place is not None else None


def _denied_of(one: Rehearsed, place: int | None) -> int:
    return one.tally.by_rule[place].denied if place is not None else 0


def _notes(rehearsal: Rehearsal, lines: LineCounts) -> list[str]:
    """What a reader must know to believe the figures."""
    notes = []
    both = [rehearsal.proposed, *([rehearsal.current] if rehearsal.current is not None else [])]
    for one in both:
        for rule_id, why in one.replay.not_rehearsed.items():
            notes.append(f"{rule_id} is not rehearsed: {why}")
    split = sorted({rule.id for one in both for rule in one.rule_set.rules if rule.scope is Scope.GLOBAL})
    watched = sorted({rule.id for one in both for rule in one.rule_set.rules if rule.mode is not Mode.ENFORCE})
    if watched:
        notes.append(
            f"{', '.join(watched)}: a shadow or soft rule; what it denies is counted by rule, not in total"
        )
    if any(rule.canary is not None for one in both for rule in one.rule_set.rules):
        notes.append("a canary meets as many keys as it would, but not the same ones")
    if split:
        notes.append(f"global rules ({', '.join(split)}) are rehearsed as the whole limit, in one place")
    if forgotten := max(one.tally.keys.forgotten for one in both):
        most = rehearsal.bounds.keys_most
        notes.append(
            f"more than {most:,} keys: {forgotten:,} were dropped from the counts by key, so these are at least"
            " what is shown"
        )
    if merged := max(one.replay.buckets.merged for one in both):
        most = rehearsal.bounds.buckets_most
        notes.append(
            f"more than {most:,} keys at work at once: {merged:,} times a key's state was merged with others',"
            " which may deny more than a real store would; raise --buckets-most"
        )
    if lines.late:
        notes.append(
            f"{lines.late:,} lines came out of order, the latest by {lines.late_most_ms / 1000:,.3g} s, and are"
            " taken at the time of the line before them"
        )
    if lines.limited_then:
        notes.append(
            f"{lines.limited_then:,} requests were answered 429 when the log was written; here they ask again"
        )
    return notes
