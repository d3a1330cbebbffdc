"""Where a log's requests come from: as its field says, else by weight, a client always from the same place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.simulator.placing import UNPLACED_MOST, Placing

WEIGHTS = {"us": 3, "eu": 1, "ap": 0}


def test_the_field_says_it_by_the_regions_name_or_by_another() -> None:
    placing = Placing(WEIGHTS, field="dc", names={"bom": "ap", "eu": "us"})
    said = [placing.place({"dc": text}) for text in ("us", "bom", "ap", "eu")]
    assert said == [0, 2, 2, 0]
    assert not placing.unplaced


def test_what_the_field_does_not_say_goes_by_weight_and_is_counted() -> None:
    placing = Placing(WEIGHTS, field="dc")
    for number in range(UNPLACED_MOST + 50):
        assert placing.place({"dc": f"x{number}"}) in (0, 1)
    placing.place({})
    assert placing.unplaced[""] == 51
    assert placing.unplaced["x0"] == 1
    assert len(placing.unplaced) == UNPLACED_MOST + 1


@given(st.text(max_size=20))
def test_a_client_has_one_place_in_every_run_and_none_where_the_weight_is_nothing(client: str) -> None:
    first, again = Placing(WEIGHTS, seed=1), Placing(WEIGHTS, seed=2)
    places = {placing.place({"client_key": client}) for placing in (first, again, first)}
    assert len(places) == 1
    assert places <= {0, 1}


def test_clients_are_where_the_weights_say_and_so_are_requests_one_by_one() -> None:
    by_client = Counter(Placing(WEIGHTS).place({"client_key": f"c{number}"}) for number in range(4000))
    each = Placing(WEIGHTS, each=True, seed=3)
    by_request = Counter(each.place({"client_key": "one"}) for _ in range(4000))
    for found in (by_client, by_request):
        assert 2850 <= found[0] <= 3150
        assert found[2] == 0
