"""All nodes of a region decide by themselves: together they stay within the region's base."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.fallback import Fallback, Unanswered
from regional_limiter.model.rule import Algorithm, OnStoreFailure, Rate
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import BucketCall, Sharing

CAPACITY, BASE, REGIONS = 300, 3333, 3
RATE = Rate(100, 1000)


def call(algorithm: Algorithm, cost: int) -> BucketCall:
    bucket = algorithm is Algorithm.TOKEN_BUCKET
    return BucketCall(
        "rl:{t}:default/r:k",
        algorithm,
        CAPACITY,
        RATE if bucket else None,
        None if bucket else 60_000,
        cost,
        sharing=Sharing.ADAPTIVE if bucket else Sharing.STATIC,
        regions=REGIONS,
        largest_share=9900,
        domain="default",
        base=BASE,
    )


checks = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(1, 20)), min_size=1, max_size=200
)  # node, milliseconds since the last check, cost


def admitted(algorithm: Algorithm, nodes: int, steps: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(at_ms, cost) of what the nodes allowed."""
    tables = [Fallback() for _ in range(nodes)]
    now_ms, taken = 0, []
    for node, passed_ms, cost in steps:
        now_ms += passed_ms
        asked = [Unanswered(call(algorithm, cost), OnStoreFailure.LOCAL, owing=True)]
        verdicts = tables[node % nodes].decide(asked, now_ms=now_ms, now_us=now_ms * 1000, nodes=nodes, charge=True)
        if verdicts[0].allowed:
            taken.append((now_ms, cost))
    return taken


@given(nodes=st.integers(1, 6), steps=checks)
def test_buckets_of_all_nodes_admit_no_more_than_the_base_of_their_region(
    nodes: int, steps: list[tuple[int, int, int]]
) -> None:
    taken = admitted(Algorithm.TOKEN_BUCKET, nodes, steps)
    capacity = region_capacity(CAPACITY, BASE, REGIONS)
    per_ms = Fraction(RATE.tokens * BASE, RATE.period_ms * 10_000)
    for first, (from_ms, _) in enumerate(taken):
        sum_of_costs = 0
        for to_ms, cost in taken[first:]:
            sum_of_costs += cost
            assert sum_of_costs <= capacity + per_ms * (to_ms - from_ms)


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_windows_of_all_nodes_admit_no_more_than_the_part_of_their_region(nodes: int) -> None:
    steps = [(i, 1, 1) for i in range(1000)]
    taken = admitted(Algorithm.FIXED_WINDOW, nodes, steps)
    part = region_capacity(CAPACITY, BASE, REGIONS)
    assert part - nodes < sum(cost for _, cost in taken) <= part
