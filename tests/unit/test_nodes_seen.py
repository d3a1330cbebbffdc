"""By how many nodes a region's part is divided: never by fewer than there may be."""

from __future__ import annotations

from pathlib import Path

from regional_limiter.node_files import NodeFiles
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


def test_a_new_process_begins_with_what_the_one_before_it_knew() -> None:
    seen = NodesSeen()
    seen.begin_with(4)
    assert seen.most() == 4
    seen.note(0, 2)
    assert seen.most() == 2


def test_the_number_of_nodes_is_kept_on_disk(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    assert files.read_nodes() == 1
    files.write_nodes(5)
    assert NodeFiles(tmp_path).read_nodes() == 5
    (tmp_path / "nodes.json").write_text("[]")
    assert files.read_nodes() == 1
