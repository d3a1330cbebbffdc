"""The pages of documentation work without the internet: all that they load comes from the service itself."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from starlette.types import ASGIApp

from global_sync.transport.memory import MemoryHub
from services.control_api.app import create_app
from tests.unit.check_api.fakes import FakeLimiter, node_of
from tests.unit.control_api.conftest import hub_settings


def node() -> ASGIApp:
    return node_of(FakeLimiter())  # type: ignore[return-value]


def control() -> ASGIApp:
    return create_app(MemoryHub().transport("control"), hub_settings())


@pytest.mark.parametrize("made", [node, control])
async def test_the_page_names_no_foreign_host_and_its_parts_are_here(made: Callable[[], ASGIApp]) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made()), base_url="http://127.0.0.1") as client:
        page = await client.get("/docs")
        assert page.status_code == 200
        assert re.findall(r"(?:https?:)?//\w[\w.-]*", page.text) == []
        assert '"validatorUrl": "none"' in page.text
        parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert {part.rpartition(".")[2] for part in parts} == {"js", "css", "png"}
        for part in [*parts, "/openapi.json"]:
            assert part in page.text
            assert (await client.get(part)).status_code == 200


@pytest.mark.parametrize(
    ("made", "paths"),
    [
        (node, {"/v1/check", "/v1/peek", "/readyz", "/metrics", "/docs"}),
        (control, {"/rules", "/v1/status", "/readyz", "/metrics", "/docs"}),
    ],
)
@pytest.mark.parametrize("path", ["/", "/nowhere"])
async def test_an_unknown_path_is_answered_with_the_known_ones(
    made: Callable[[], ASGIApp], paths: set[str], path: str
) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made()), base_url="http://127.0.0.1") as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    words, _, known = answer.json()["detail"].partition(": ")
    assert words == "known here"
    assert paths <= set(known.split(", "))
