from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.system import LocalSystem, local_system

THIRD = 1 / 3


@pytest.fixture(scope="session")
def fast_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    """All times a third of the defaults: D 6.7 s, D_c 10 s.  Shared by the tests that leave it whole."""
    with local_system(tmp_path_factory.mktemp("fast"), base_port=31000, scale=THIRD) as system:
        yield system


@pytest.fixture
def default_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    """The defaults: D 20 s, D_c 30 s, so that a failover of 4 s fits."""
    with local_system(tmp_path_factory.mktemp("default"), base_port=32000, scale=1.0) as system:
        yield system


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A system of its own comes first: while the shared one runs, the machine is not its own."""
    items.sort(key=lambda item: "fast_system" in getattr(item, "fixturenames", ()))
