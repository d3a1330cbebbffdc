"""By how many nodes a region's part is divided: never by fewer than there may be."""

from __future__ import annotations

from regional_limiter.nodes_seen import NodesSeen

SECOND = 1_000_000


def test_the_most_that_were_alive_together_within_a_minute() -> None:
    seen = NodesSeen()
    assert seen.most() == 1
    for at_s, nodes in ((0, 2), (1, 5), (2, 3), (3, 0)):
        seen.note(at_s * SECOND, nodes)
    assert seen.most() == 5
    seen.note(60 * SECOND, 3)
    assert seen.most() == 5
    seen.note(62 * SECOND, 3)
    assert seen.most() == 3


def test_a_minute_without_any_word_changes_nothing() -> None:
    """Each of five nodes would take the region's whole part after a minute of a Redis outage."""
    seen = NodesSeen()
    seen.note(0, 5)
    for _ in range(3):
        assert seen.most() == 5  # nothing is asked of the clock
    seen.note(600 * SECOND, 2)
    assert seen.most() == 2
