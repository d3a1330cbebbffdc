"""A log of every answer that a load generator was given, and whether what the system counted is the same.

It is kept apart from everything that counts in the system: one line of JSON an answer, in a file, by one clock.
What may differ is named: an answer that nobody got may have been counted, and what a killed process had not told
anybody yet is lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from services.cli.drive import CheckRecord

UNTOLD_S = 1.0
"""What a node counts is in its next beat, 0.1 s later; a second where its Redis is disturbed as well."""
UNREPLICATED_S = 0.2
"""What a primary has charged and not yet handed to its replica."""


@dataclass(frozen=True)
class Kill:
    """A process that was killed: a node by its url, or a primary (url None)."""

    region: str
    at: float
    url: str | None = None


@dataclass
class Answers:
    """``path``: the file.  ``rows``: the same in memory."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def take(self, region: str, rule: str, key: str, targets: Sequence[str], checks: Iterable[CheckRecord]) -> None:
        with self.path.open("a") as file:
            for check in checks:
                row = {"region": region, "rule": rule, "key": key, "url": targets[check.target], **check._asdict()}
                self.rows.append(row)
                file.write(json.dumps(row) + "\n")

    def killed(self, kill: Kill) -> None:
        self.kills.append(kill)
        with self.path.open("a") as file:
            file.write(json.dumps({"killed": asdict(kill)}) + "\n")

    # ---- against what the nodes counted

    def usage_problems(self, usage: Mapping[str, Any]) -> list[str]:
        """``usage``: of the control API, by ``domain/rule`` and region."""
        problems = []
        for rule, region in sorted({(row["rule"], row["region"]) for row in self.rows}):
            rows = [row for row in self.rows if (row["rule"], row["region"]) == (rule, region)]
            counted = usage.get(f"default/{rule}", {}).get("regions", {}).get(region, {})
            for name, allowed in (("allowed", True), ("denied", False)):
                logged = [row for row in rows if row["error"] is None and row["allowed"] is allowed]
                unanswered = sum(row["error"] is not None for row in rows)
                lost = sum(self._lost_with_a_node(row) for row in logged)
                problems += _differs(
                    f"{rule} in {region}, {name}", len(logged), counted.get(name, 0), unanswered, lost
                )
                cost = sum(row["cost"] for row in logged)
                problems += _differs(
                    f"{rule} in {region}, cost {name}",
                    cost,
                    counted.get(f"{name}_cost", 0),
                    sum(row["cost"] for row in rows if row["error"] is not None),
                    sum(row["cost"] for row in logged if self._lost_with_a_node(row)),
                )
        return problems

    def _lost_with_a_node(self, row: Mapping[str, Any]) -> bool:
        return any(kill.url == row["url"] and 0 <= kill.at - row["answered_at"] < UNTOLD_S for kill in self.kills)

    # ---- against what the store charged

    def charge_problems(self, region: str, rule: str, key: str, used: int) -> list[str]:
        """``used``: of a bucket that nothing refills."""
        rows = [row for row in self.rows if (row["region"], row["rule"], row["key"]) == (region, rule, key)]
        allowed = [row for row in rows if row["error"] is None and row["allowed"]]
        unanswered = sum(row["cost"] for row in rows if row["error"] is not None)
        # Degraded: decided by the node, because the call was not answered; it may have run or not.
        lost = sum(row["cost"] for row in allowed if row["degraded"] or self._lost_with_a_primary(row))
        return _differs(
            f"{key} of {rule} in {region}, charged", sum(row["cost"] for row in allowed), used, unanswered, lost
        )

    def _lost_with_a_primary(self, row: Mapping[str, Any]) -> bool:
        return any(
            kill.url is None and kill.region == row["region"] and 0 <= kill.at - row["answered_at"] < UNREPLICATED_S
            for kill in self.kills
        )

    def told(self) -> str:
        allowed, degraded = (sum(row[name] for row in self.rows) for name in ("allowed", "degraded"))
        unanswered = sum(row["error"] is not None for row in self.rows)
        return (
            f"{len(self.rows)} checks logged in {self.path}: {allowed} allowed, {degraded} degraded,"
            f" {unanswered} without an answer"
        )


def _differs(what: str, logged: int, counted: int, more: int, less: int) -> list[str]:
    """``more``, ``less``: how many the count may be above and below the log."""
    print(f"{what}: {logged} logged, {counted} counted (allowed for: {more} more, {less} less)")
    if logged - less <= counted <= logged + more:
        return []
    return [f"{what}: {logged} logged, {counted} counted, of which {more} more and {less} less are accounted for"]
