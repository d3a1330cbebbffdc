"""An outcome in figures: one row for the real code and one for each model beside it.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.simulator.measure import percentile
from services.simulator.run import APPORTION, Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """How one way to split the limit did, ready to be read.  ``exceeds``: it let through more than the limit."""

    name: str
    utilisation: str
    false_rejects: str
    excess: str
    messages: str
    exceeds: bool


def rows(outcome: Outcome) -> list[Row]:
    """The real code first."""
    return [
        Row(
            name,
            f"{outcome.utilisation(name):.3f}",
            f"{100 * counts.false_rejects:.2f} %",
            f"{counts.excess:.0f} tokens" if counts.excess else "never",
            f"{outcome.messages[name]:.1f}",
            counts.excess > 0,
        )
        for name, counts in outcome.counts.items()
    ]


def convergence_in_words(outcome: Outcome) -> str:
    """How fast shares followed what was fair."""
    times = outcome.convergence.times_s
    late = outcome.convergence.unfinished
    if not times and not late:
        return "no jump of what is fair to follow"
    half, most = percentile(times, 0.5), percentile(times, 0.99)
    words = f"{len(times)} jumps of what is fair: 95 % after {1000 * half:.0f} ms (p50), {1000 * most:.0f} ms (p99)"
    return f"{words}; {late} more ended before that" if late else words


def document(outcome: Outcome) -> dict[str, Any]:
    """The same for programs: fractions, tokens, seconds, messages and bytes a second."""
    return {
        "splits": {
            name: {
                "utilisation": round(outcome.utilisation(name), 5),
                "false_rejects": round(counts.false_rejects, 6),
                "excess_tokens": round(counts.excess, 3),
                "admitted": counts.admitted,
                "offered": counts.offered,
                "messages_a_second": round(outcome.messages[name], 2),
            }
            for name, counts in outcome.counts.items()
        },
        "convergence_s": [round(value, 3) for value in outcome.convergence.times_s],
        "convergence_unfinished": outcome.convergence.unfinished,
        "bytes_a_second": round(outcome.bytes_a_second, 1),
        "shares_in_force_most": outcome.shares_most,
        "admitted_by_region": outcome.counts[APPORTION].by_region,
    }
