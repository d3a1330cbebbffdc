"""What matching costs with 1,000 rules against 10 of the same shape, as ratios in one run.  Not a test.

    python -m tests.bench.rule_matching [--checks 1000]

The checks meet the same number of rules in both sets.  Processor time of the best of several turns, taken in pairs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from regional_limiter.rules import Matcher, compile_rules, parse_document

FEW, MANY = 10, 1000
TURNS = 25
MOST = 2.0

SHAPES: Mapping[str, tuple[Callable[[int], dict[str, Any]], Callable[[int], dict[str, str]]]] = {
    "exact": (lambda n: {"resource": f"GET /item/{n}"}, lambda n: {"resource": f"GET /item/{n}"}),
    "beginnings": (lambda n: {"resource": f"GET /{n}/*"}, lambda n: {"resource": f"GET /{n}/a/b"}),
    "endings": (lambda n: {"resource": f"*/{n:04}.jpg"}, lambda n: {"resource": f"GET /a/{n:04}.jpg"}),
    "two attributes": (
        lambda n: {"resource": "POST /orders", "tier": f"t{n}"},
        lambda n: {"resource": "POST /orders", "tier": f"t{n}"},
    ),
    "networks": (
        lambda n: {"ip": {"cidr": [f"10.{n // 250}.{n % 250}.0/24"]}},
        lambda n: {"ip": f"10.{n // 250}.{n % 250}.7"},
    ),
    "networks of both families": (
        lambda n: {"ip": {"cidr": [f"10.{n // 250}.{n % 250}.0/24", f"2001:db8:{n:x}::/48"]}},
        lambda n: {"ip": f"2001:db8:{n:x}::7"},
    ),
    "ranges": (
        lambda n: {"size": {"min": 10 * n, "max": 10 * n + 9}},
        lambda n: {"size": str(10 * n + 5)},
    ),
    "a negation beside": (
        lambda n: {"country": {"not": ["DE"]}, "resource": f"GET /item/{n}"},
        lambda n: {"country": "FR", "resource": f"GET /item/{n}"},
    ),
    "one network beside": (
        lambda n: {"ip": {"cidr": "10.0.0.0/8"}, "resource": f"GET /item/{n}"},
        lambda n: {"ip": "10.1.2.3", "resource": f"GET /item/{n}"},
    ),
}


def matcher(match_of: Callable[[int], dict[str, Any]], rules: int) -> Matcher:
    limits = [{"id": f"r{n}", "capacity": 5, "refill": "1/s", "match": match_of(n)} for n in range(rules)]
    return compile_rules(parse_document({"rules": limits}))


def cost_us(one: Matcher, checks: list[dict[str, str]]) -> float:
    start = time.process_time()
    for attributes in checks:
        one.match(attributes)
    return (time.process_time() - start) / len(checks) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=1000)
    arguments = parser.parse_args()
    print(f"{'shape':<28}{f'us, {FEW} rules':>15}{f'us, {MANY}':>12}{'ratio':>8}   at most {MOST:g}")
    for shape, (match_of, check_of) in SHAPES.items():
        few, many = matcher(match_of, FEW), matcher(match_of, MANY)
        checks_few = [check_of(n % FEW) for n in range(arguments.checks)]
        checks_many = [check_of(n * 7 % MANY) for n in range(arguments.checks)]
        pairs = [(cost_us(few, checks_few), cost_us(many, checks_many)) for _ in range(TURNS)]
        best_few, best_many = (min(side) for side in zip(*pairs, strict=True))
        ratio = best_many / best_few
        print(f"{shape:<28}{best_few:>15.2f}{best_many:>12.2f}{ratio:>8.2f}   {'ok' if ratio <= MOST else 'ABOVE'}")


if __name__ == "__main__":
    main()
