"""``apportion region …`` over the control API: what cannot be is said before anything is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_against_control import _known, control  # noqa: F401
from tests.unit.cli.test_main import run

SET = """
domain: life
regions: {us-east: 3, eu-west: 1}
rules: [{id: shared, capacity: 10, refill: 1/s, scope: global}]
"""


@pytest.fixture(autouse=True)
def _rules(_known: None, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "rules.yaml"
    file.write_text(SET)
    assert run("rules", "apply", str(file))[0] == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("rename us-east nobody-yet", "nothing is heard of nobody-yet"),
        ("rename us-east eu-west --unheard", "eu-west has a weight in life already"),
        ("join nobody-yet", "nothing is heard of nobody-yet"),
        ("leave nobody-yet", "no region is called nobody-yet; there are eu-west, us-east"),
        ("reweight us-east=0 eu-west=0", "domain life would be left without a region"),
        ("reweight us-east=-1", "must be NAME=WEIGHT"),
        ("reweight nobody-yet=1", "no region is called nobody-yet"),
        ("restore ap-south --unheard", "ap-south has never had a weight in life"),
        ("leave us-east --domain none", "no rules of domain none"),
        ("destroyed us-east", "--yes says it"),
        ("destroyed us-east --yes", "say why"),
    ],
)
def test_a_wrong_order_changes_nothing(words: str, problem: str) -> None:
    code, _, err = run("region", *words.split())
    assert code != 0
    assert problem in err
    assert weights() == {"us-east": 3, "eu-west": 1}


def test_weights_are_changed_from_what_is_there_and_the_history_says_who_and_why() -> None:
    code, out, err = run("region", "reweight", "eu-west=2", "--dry-run")
    assert code == 0, err
    assert "40.00 %" in out
    assert "nothing is changed yet" in err
    assert "eu-west is not heard of" not in err, "its base rises: nobody waits for it"
    assert "us-east is not heard of: this waits" in err
    assert weights() == {"us-east": 3, "eu-west": 1}
    code, _, err = run("region", "reweight", "eu-west=2", "--reason", "more there", "--wait", "0")
    assert code == 0, err
    assert weights() == {"us-east": 3, "eu-west": 2}
    _, out, _ = run("history", "--json")
    newest = json.loads(out)["changes"][0]
    assert (newest["kind"], newest["domain"], newest["reason"]) == ("put_regions", "life", "more there")


@pytest.mark.parametrize("how", [[], ["--dry-run"]], ids=["made", "tried"])
def test_no_domain_is_changed_when_one_of_them_refuses(how: list[str], tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SET.replace("domain: life", "domain: tiny").replace("capacity: 10", "capacity: 2"))
    assert run("rules", "apply", str(file))[0] == 0
    code, _, err = run("region", "join", "ap-south", "--unheard", "--wait", "0", *how)
    assert code == 1
    assert "tiny: refused" in err
    assert weights() == {"us-east": 3, "eu-west": 1}
    assert run("region", "join", "ap-south", "--unheard", "--wait", "0", "--domain", "life", *how)[0] == 0


def test_what_is_not_in_force_in_time_is_told_with_what_it_waits_for() -> None:
    code, out, err = run("region", "reweight", "eu-west=7", "--wait", "0.1", "--json")
    assert code == 1
    told = json.loads(out)
    assert (told["in_force"], told["waits"]) == (False, ["the leader has not begun yet"])
    assert "the same command goes on waiting" in err


def test_a_region_that_left_gets_back_the_weight_it_had() -> None:
    assert run("region", "leave", "us-east", "--wait", "0")[0] == 0
    assert weights() == {"eu-west": 1}
    assert run("region", "restore", "us-east", "--unheard", "--wait", "0")[0] == 0
    assert weights() == {"eu-west": 1, "us-east": 3}


def weights() -> dict[str, int]:
    _, out, _ = run("region", "list", "--json")
    found: dict[str, int] = json.loads(out)["domains"]["life"]["weights"]
    return found
