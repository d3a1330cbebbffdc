"""The brokers that all of these tests share: one start for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.anger.brokers import Brokers, three_brokers


@pytest.fixture(scope="package")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with three_brokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running
