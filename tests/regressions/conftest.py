"""One enforcement point in each language, with a clock that the test moves (see tests/contract/points.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regional_limiter.model.share import ProtocolTimes
from tests.contract.points import Point, PythonPoint, RedisPoint
from tests.contract.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(params=["python", "redis"])
def point(request: pytest.FixtureRequest) -> Point:
    if request.param == "python":
        return PythonPoint(ProtocolTimes())
    return RedisPoint(request.getfixturevalue("server"), ProtocolTimes())
