"""A configuration that is served as it lies there, and what happens when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.rule import RuleSet
from services.rls import served_config
from services.rls.served_config import ServedConfig

ONE = "domain: one\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}]\n"
TWO = ONE.replace("one", "two")


class Given:
    def __init__(self) -> None:
        self.sets: list[dict[str, int]] = []

    def __call__(self, sets: Sequence[RuleSet]) -> None:
        self.sets.append({one.domain: one.rules[0].capacity for one in sets})


async def changed(config: ServedConfig, happens: Callable[[], bool]) -> None:
    watching = asyncio.create_task(config.watch())
    async with asyncio.timeout(10):
        while not happens():  # noqa: ASYNC110 - the watch sets no event
            await asyncio.sleep(0.01)
    watching.cancel()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_config, "LOOK_EVERY_S", 0.01)


async def test_a_file_and_a_directory_are_served_and_followed(tmp_path: Path) -> None:
    given = Given()
    (tmp_path / "one.yaml").write_text(ONE)
    (tmp_path / ".hidden.yaml").write_text("not: this")
    ServedConfig(tmp_path / "one.yaml", given).load()
    config = ServedConfig(tmp_path, given)
    config.load()
    assert given.sets == [{"one": 5}, {"one": 5}]
    (tmp_path / "two.yaml").write_text(TWO)
    (tmp_path / "one.yaml").write_text(ONE.replace("5", "50"))
    await changed(config, lambda: given.sets[-1] == {"one": 50, "two": 5})


async def test_a_link_that_names_another_directory_is_a_change(tmp_path: Path) -> None:
    given = Given()
    for name, text in (("first", ONE), ("second", TWO)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    link = tmp_path / "current"
    link.symlink_to("first")
    config = ServedConfig(link, given)
    config.load()
    (tmp_path / "next").symlink_to("second")
    (tmp_path / "next").rename(link)
    await changed(config, lambda: given.sets == [{"one": 5}, {"two": 5}])


@pytest.mark.parametrize(
    "wrong",
    ["domain: one\ndescriptors: [{kee: a}]\n", "domain: [", TWO, None],
    ids=["field", "yaml", "twice", "gone"],
)
async def test_what_is_refused_leaves_what_is_in_force(tmp_path: Path, wrong: str | None) -> None:
    given = Given()
    (tmp_path / "one.yaml").write_text(ONE)
    (tmp_path / "two.yaml").write_text(TWO)
    config = ServedConfig(tmp_path, given)
    config.load()
    if wrong is None:
        (tmp_path / "one.yaml").unlink()
        (tmp_path / "two.yaml").unlink()
    else:
        (tmp_path / "one.yaml").write_text(wrong)
    await changed(config, lambda: config.refused > 0)
    assert given.sets == [{"one": 5, "two": 5}]
    (tmp_path / "one.yaml").write_text(ONE.replace("5", "6"))
    (tmp_path / "two.yaml").write_text(TWO)
    await changed(config, lambda: given.sets[-1] == {"one": 6, "two": 5})


def test_every_fault_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("domain: a\ndescriptors: [{kee: a}]\n")
    (tmp_path / "b.yaml").write_text(ONE)
    (tmp_path / "c.yaml").write_text(ONE)
    with pytest.raises(InvalidRules) as refused:
        ServedConfig(tmp_path, Given()).load()
    assert [fault.place for fault in refused.value.faults] == [
        "a.yaml: descriptors[0].kee",
        "a.yaml: descriptors[0].key",
        "c.yaml: domain",
    ]
    with pytest.raises(InvalidRules, match="cannot be read"):
        ServedConfig(tmp_path / "absent.yaml", Given()).load()
