"""What a change of a rule set does: which rules appear, change and vanish, and which keep their counts.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regional_limiter.model.rule import Algorithm, Mode, Override, Rule, RuleSet, Scope, StoredSubjects
from regional_limiter.rules.describe import describe, limit_in_words, override_in_words

_LEVELS = frozenset({Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET})
"""The kinds among which a bucket is carried over."""
_KEYS_NAMED = 10
_NOT_COMPARED = ("overrides", "in_words")
_SHARED_OTHERWISE = (
    "in the window that is running now, up to half of the limit more may pass (a third with three equal regions):"
    " change its distribution shortly before a window ends"
)
_SET_FIELDS = ("regions", "defaults", "subjects")


def effects(before: RuleSet | None, after: RuleSet | None) -> dict[str, Any]:
    """What it does to go from one set of a domain to the other, as plain JSON.  None: no rules.

    ``rules`` and ``overrides``: one entry for each that is not the same, with ``effect`` appear, change or vanish.
    Of a changed rule ``fields`` has what is held before and after, and ``keeps_counts`` whether what was used stays
    used; ``why_not`` says why not; ``note`` what else to mind.  ``set``: what else of the set is not the
    same.  ``nothing``: all is the same.
    """
    rules = _rules(before, after)
    overrides = _overrides(before, after)
    of_set = _of_set(before, after)
    return {
        "nothing": not (rules or overrides or of_set),
        "appear": sum(one["effect"] == "appear" for one in rules),
        "change": sum(one["effect"] == "change" for one in rules),
        "vanish": sum(one["effect"] == "vanish" for one in rules),
        "rules": rules,
        "overrides": overrides,
        "set": of_set,
    }


def _rules(before: RuleSet | None, after: RuleSet | None) -> list[dict[str, Any]]:
    old = {rule.id: rule for rule in before.rules} if before else {}
    new = {rule.id: rule for rule in after.rules} if after else {}
    found: list[dict[str, Any]] = []
    for name, rule in new.items():
        if name not in old:
            found.append({"rule": name, "effect": "appear", "in_words": limit_in_words(rule)})
        elif before is not None and after is not None:
            fields = _changed_fields(describe(old[name], before), describe(rule, after))
            if fields:
                why_not = why_counts_are_lost(old[name], rule)
                entry: dict[str, Any] = {"rule": name, "effect": "change", "in_words": limit_in_words(rule)}
                entry |= {"keeps_counts": why_not is None, "fields": fields}
                notes = _denied_otherwise(old[name], rule, before, after)
                if why_not is not None:
                    entry["why_not"] = why_not
                elif _is_shared_otherwise(old[name], rule):
                    notes.append(_SHARED_OTHERWISE)
                if notes:
                    entry["note"] = "; ".join(notes)
                found.append(entry)
    for name, rule in old.items():
        if name not in new:
            found.append({"rule": name, "effect": "vanish", "in_words": limit_in_words(rule)})
    return found


def _changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in {**old, **new} if name not in _NOT_COMPARED and old.get(name) != new.get(name)]
    return {name: {"before": old.get(name), "after": new.get(name)} for name in names}


def why_counts_are_lost(old: Rule, new: Rule) -> str | None:
    """Why the buckets of a changed rule begin anew; None when they go on."""
    if old.key != new.key:
        return f"its buckets are kept by {_key(new)}, no longer by {_key(old)}"
    if old.hash_key != new.hash_key:
        return "its keys are hashed now" if new.hash_key else "its keys are no longer hashed"
    old_forms, new_forms = dict(old.normalise), dict(new.normalise)
    for name in new.key:
        if old_forms.get(name) != new_forms.get(name):
            return f"{name}, by which its buckets are kept, is read in another normal form"
    if old.algorithm is not new.algorithm and not {old.algorithm, new.algorithm} <= _LEVELS:
        return f"a {new.algorithm} cannot go on with what a {old.algorithm} has counted"
    if (old.window_ms, old.calendar) != (new.window_ms, new.calendar):
        return "its windows are others"
    return None


def _denied_otherwise(old: Rule, new: Rule, before: RuleSet, after: RuleSet) -> list[str]:
    """Whom a change of the mode lets in or keeps out, at once."""
    if old.mode is new.mode:
        return []
    notes = {
        Mode.ENFORCE: ["denies past its limit from now on"],
        Mode.SHADOW: ["denies nobody any more: the limit is lifted at once"] if old.mode is Mode.ENFORCE else [],
        Mode.SOFT: ["allows past its limit from now on, and says so"] if old.mode is Mode.ENFORCE else [],
    }[new.mode]
    if new.mode is Mode.SHADOW and (blocked := _blocked(before, old.id)):
        notes.append(f"no longer denied: {blocked}")
    if old.mode is Mode.SHADOW and (blocked := _blocked(after, new.id)):
        notes.append(f"denied whatever is left: {blocked}")
    return notes


def _blocked(rule_set: RuleSet, rule_id: str) -> str:
    """The keys that overrides of a rule block."""
    keys = [
        ", ".join(key) or "all" for key, one in rule_set.overrides.get(rule_id, {}).items() if one.in_force.blocked
    ]
    more = len(keys) - _KEYS_NAMED
    return "; ".join(keys[:_KEYS_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


def _is_shared_otherwise(old: Rule, new: Rule) -> bool:
    """A window that regions have begun to use by one way of sharing it goes on by another."""
    are_global = old.scope is Scope.GLOBAL and new.scope is Scope.GLOBAL
    return are_global and new.algorithm is Algorithm.FIXED_WINDOW and old.distribution is not new.distribution


def _key(rule: Rule) -> str:
    return ", ".join(rule.key) or "nothing (one bucket for all)"


# ---- the rest of a set


def _overrides(before: RuleSet | None, after: RuleSet | None) -> list[dict[str, Any]]:
    old, new = _flat(before), _flat(after)
    found = []
    for place in {**new, **old}:
        was, now = old.get(place), new.get(place)
        if was == now:
            continue
        effect = "appear" if was is None else "vanish" if now is None else "change"
        shown = now or was
        assert shown is not None
        rule, values = place
        found.append(
            {
                "rule": rule,
                "key": dict(zip(shown.in_force.key, values, strict=True)),
                "effect": effect,
                "in_words": override_in_words(shown.in_force),
                "until_ms": shown.until_ms,
            }
        )
    return found


def _flat(rule_set: RuleSet | None) -> dict[tuple[str, tuple[str, ...]], Override]:
    if rule_set is None:
        return {}
    return {(rule, key): one for rule, by_key in rule_set.overrides.items() for key, one in by_key.items()}


def _of_set(before: RuleSet | None, after: RuleSet | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _SET_FIELDS:
        was, now = getattr(before, name, ()), getattr(after, name, ())
        if was == now or not (was or now):
            continue
        if name == "subjects":
            said = {"before": len(was), "after": len(now), "note": "how many there are; some are not the same"}
        else:
            said = {"before": dict(was), "after": dict(now)}
        found[name] = said
    if before is not None and after is not None and before.floor_per_mille != after.floor_per_mille:
        found["floor"] = {
            "before": f"{before.floor_per_mille / 10:g}%",
            "after": f"{after.floor_per_mille / 10:g}%",
        }
    was_kept, is_kept = getattr(before, "stored_subjects", None), getattr(after, "stored_subjects", None)
    if was_kept != is_kept:
        found["stored_subjects"] = {"before": _kept_in_words(was_kept), "after": _kept_in_words(is_kept)}
    old_order = [rule.id for rule in before.rules] if before else []
    new_order = [rule.id for rule in after.rules] if after else []
    stayed = [name for name in old_order if name in set(new_order)]
    if stayed != [name for name in new_order if name in set(old_order)]:
        found["order"] = {"before": old_order, "after": new_order}
    return found


def _kept_in_words(stored: StoredSubjects | None) -> str:
    return "none" if stored is None else f"looked up, and kept for {stored.keep_ms / 1000:g} s"
