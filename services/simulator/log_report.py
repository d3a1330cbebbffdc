"""What a log's requests met over regions, as one document; tables and the page are made from it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from regional_limiter.model.keys import identity_of, rule_of
from regional_limiter.model.share import SHARE_UNITS
from regional_limiter.rules import limit_in_words
from services.simulator.beside import Way, other_ways
from services.simulator.log_counts import Asked, Key
from services.simulator.over_log import LogOutcome, LogSetting
from services.simulator.page import figure, table, thinned, whole_page

RULE_HEADS = ("rule", "limit", "requests", "utilisation", "false rejects", "parts for good", "over the limit")
KEY_HEADS = ("rule", "key", "requests", "utilisation", "false rejects", "parts for good", "over the limit")
WAY_HEADS = ("", "utilisation", "false rejects", "over the limit")


def document(
    setting: LogSetting, outcome: LogOutcome, left_out: Mapping[str, str], keys_shown: int, beside: int
) -> dict[str, Any]:
    """``keys_shown``: of those that lost most; ``beside``: of them, those that the other ways are tried on.

    Utilisation: tokens admitted, of what one place would admit.  Shares are out of 10,000, rates by second.
    """
    limits = {rule.id: limit_in_words(rule) for rule in setting.rule_set.rules}
    places = {name: place for place, name in enumerate(setting.delays_ms)}
    cuts = [(at_s, [places[name] for name in regions], is_cut) for at_s, regions, is_cut in setting.cuts]
    bases = [setting.rule_set.bases[name] for name in places]
    delays_ms = list(setting.delays_ms.values())
    lost = sorted(outcome.keys.values(), key=lambda key: (-_denied(key), -key.requests, key.name))[:keys_shown]
    tried = [key for key in lost if key.call.refill is not None][:beside]
    shown = next((key.name for key in lost if key.name in outcome.watched), None)
    return {
        "regions": dict(setting.delays_ms),
        "seconds": round(outcome.seconds, 3),
        "requests": outcome.requests,
        "requests_by_region": dict(zip(places, outcome.asked_by_region, strict=True)),
        "allowed_by_region": dict(zip(places, outcome.by_region, strict=True)),
        "allowed": outcome.allowed,
        "allowed_in_one_place": outcome.at_once,
        "allowed_by_parts_for_good": outcome.parted,
        "rules": [{"rule": name, "limit": limits[name], **_asked(one)} for name, one in outcome.by_rule.items()],
        "left_out": dict(left_out),
        "keys": [{"rule": rule_of(key.name)[1], "key": identity_of(key.name), **_asked(key)} for key in lost],
        "beside": [
            {
                "rule": rule_of(key.name)[1],
                "key": identity_of(key.name),
                "ways": [_way(way) for way in other_ways(key, delays_ms, bases, cuts)],
            }
            for key in tried
        ]
        if outcome.arrivals_kept
        else [],
        "messages_a_second": round(outcome.messages_a_second, 2),
        "bytes_a_second": round(outcome.bytes_a_second, 1),
        "shares_in_force_most": outcome.shares_most,
        "refused": dict(outcome.refused.most_common(10)),
        "unplaced": dict(outcome.unplaced.most_common(10)),
        "ended_early": outcome.ended_early,
        "problems": outcome.problems,
        "shares_of": {"rule": rule_of(shown)[1], "key": identity_of(shown)} if shown is not None else None,
        "samples": [
            {
                "at_s": sample.at_s,
                "offered": [round(rate, 2) for rate in sample.offered],
                "admitted": [round(rate, 2) for rate in sample.admitted],
                "shares": list(outcome.watched[shown][number]) if shown is not None else [],
            }
            for number, sample in thinned(list(enumerate(outcome.samples)))
        ],
    }


def _denied(key: Key) -> int:
    """Tokens that were lost to distance, and then those lost at all."""
    return 1_000_000 * max(0, key.at_once - key.allowed) + key.tokens - key.allowed


def _asked(one: Asked) -> dict[str, Any]:
    return {
        "requests": one.requests,
        "tokens": one.tokens,
        "allowed_tokens": one.allowed,
        "allowed_tokens_in_one_place": one.at_once,
        "allowed_tokens_by_parts_for_good": one.parted,
        "utilisation": round(one.utilisation, 5),
        "false_rejects": round(one.false_rejects / one.requests, 6) if one.requests else 0.0,
        "excess_tokens": round(max(0.0, one.excess), 3),
    }


def _way(way: Way) -> dict[str, Any]:
    return {
        "name": way.name,
        "utilisation": round(way.utilisation, 5),
        "false_rejects": round(way.false_rejects, 6),
        "excess_tokens": round(way.excess, 3),
    }


def rule_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Under :data:`RULE_HEADS`."""
    return [(one["rule"], one["limit"], *_cells(one)) for one in found["rules"]]


def key_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Under :data:`KEY_HEADS`."""
    return [(one["rule"], one["key"], *_cells(one)) for one in found["keys"]]


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    at_once = one["allowed_tokens_in_one_place"]
    parted = one["allowed_tokens_by_parts_for_good"] / at_once if at_once else 1.0
    return (
        f"{one['requests']:,}",
        f"{one['utilisation']:.3f}",
        f"{100 * one['false_rejects']:.2f} %",
        f"{parted:.3f}",
        _over(one["excess_tokens"]),
    )


def way_rows(ways: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Under :data:`WAY_HEADS`."""
    return [
        (
            one["name"],
            f"{one['utilisation']:.3f}",
            f"{100 * one['false_rejects']:.2f} %",
            _over(one["excess_tokens"]),
        )
        for one in ways
    ]


def _over(tokens: float) -> str:
    return f"{tokens:,.0f} tokens" if tokens > 0 else "never"


def notes(found: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the figures."""
    told = [f"rule {name} is left out: {why}" for name, why in found["left_out"].items()]
    if found["ended_early"]:
        told.append(found["ended_early"])
    if found["unplaced"]:
        worst = ", ".join(f"{text or '(nothing)'}: {count:,}" for text, count in found["unplaced"].items())
        told.append(f"requests without the name of a region, placed by weight: {worst}")
    told += [f"{count:,} requests were refused: {why}" for why, count in found["refused"].items()]
    return told


def summary(found: Mapping[str, Any]) -> str:
    """One line."""
    at_once = found["allowed_in_one_place"]
    return (
        f"{found['requests']:,} requests in {found['seconds']:,.0f} s over {len(found['regions'])} regions: "
        f"{found['allowed']:,} allowed, {at_once:,} in one place, "
        f"{found['allowed_by_parts_for_good']:,} by parts for good"
    )


def traffic(found: Mapping[str, Any]) -> str:
    """One line."""
    return (
        f"shares in force: at most {found['shares_in_force_most'] or SHARE_UNITS} of {SHARE_UNITS}; "
        f"{found['messages_a_second']:.1f} messages and {found['bytes_a_second'] / 1000:.1f} kB a second "
        "between the regions"
    )


def page(title: str, found: Mapping[str, Any]) -> str:
    """The document as one page with drawings that needs nothing else."""
    names, samples = list(found["regions"]), found["samples"]
    times = [sample["at_s"] for sample in samples]
    totals = {
        "asked for": [sum(sample["offered"]) for sample in samples],
        "admitted": [sum(sample["admitted"]) for sample in samples],
    }
    by_region = {name: [sample["admitted"][place] for sample in samples] for place, name in enumerate(names)}
    parts = [
        f"<p>{escape(summary(found))}</p><p>{escape(traffic(found))}</p>",
        *(f"<p>{escape(note)}</p>" for note in notes(found)),
        "<h2>By rule</h2>",
        table(RULE_HEADS, rule_rows(found)),
        "<h2>Keys that lost most</h2>",
        table(KEY_HEADS, key_rows(found)),
    ]
    for one in found["beside"]:
        parts.append(f"<h2>Other ways to split {escape(one['rule'])} of {escape(one['key'])}</h2>")
        parts.append(table(WAY_HEADS, way_rows(one["ways"])))
    parts.append(figure("Requests a second, all regions", times, totals))
    parts.append(figure("Allowed a second, by region", times, by_region))
    if found["shares_of"] is not None:
        of = f"{found['shares_of']['rule']} of {found['shares_of']['key']}"
        shares = {
            name: [100 * sample["shares"][place] / SHARE_UNITS for sample in samples]
            for place, name in enumerate(names)
        }
        parts.append(figure(f"Share of {of} in force, in percent", times, shares))
    return whole_page(title, parts)
