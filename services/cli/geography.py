"""Regions, their distances and what is cut, as options say them.  Each ends the process at what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.cli.output import fail

REGIONS_MOST = 20
DELAY_MS_MOST = 2000
_CUT = re.compile(r"(?P<who>[A-Za-z0-9._-]+):(?P<begin>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)")


def regions_of(text: str, option: str = "--regions", least: int = 2) -> dict[str, int]:
    """Name -> weight."""
    weights: dict[str, int] = {}
    for item in text.split(","):
        name, _, weight = item.strip().partition(":")
        if not re.fullmatch(r"[a-z0-9._-]{1,64}", name):
            fail(f"{option} {item}: a name is made of a-z, 0-9, dot, dash and underscore")
        if name in weights:
            fail(f"{option}: {name} is given twice")
        if weight and not (weight.isdecimal() and 1 <= int(weight) <= 10_000):
            fail(f"{option} {item}: a weight is a number from 1 to 10000")
        weights[name] = int(weight or 1)
    if not least <= len(weights) <= REGIONS_MOST:
        fail(f"{option}: from {least} to {REGIONS_MOST} of them")
    return weights


def delays_of(text: str, names: Sequence[str]) -> dict[str, int]:
    """Name -> ms, in the order of ``names``."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(names):
        fail(f"--latency: {len(parts)} numbers for {len(names)} regions")
    for part in parts:
        if not (part.isdecimal() and int(part) <= DELAY_MS_MOST):
            fail(f"--latency {part}: milliseconds from 0 to {DELAY_MS_MOST}")
    return {name: int(part) for name, part in zip(names, parts, strict=True)}


def cuts_of(cuts: Sequence[str], names: Sequence[str]) -> list[tuple[float, list[str], bool]]:
    """(seconds, regions, whether their links are cut from then on, or whole)."""
    found: list[tuple[float, list[str], bool]] = []
    for text in cuts:
        match = _CUT.fullmatch(text)
        if match is None or float(match["begin"]) >= float(match["end"]):
            fail(f"--cut {text}: a region (or hub), from and to in seconds, like eu-west:20-60")
        who = match["who"]
        if who != "hub" and who not in names:
            fail(f"--cut {text}: one of {', '.join(names)}, or hub")
        of = list(names) if who == "hub" else [who]
        found += [(float(match["begin"]), of, True), (float(match["end"]), of, False)]
    return found
