"""The document that other languages are written from is the one that nodes give."""

from __future__ import annotations

import json
from pathlib import Path

from services.check_api import openapi
from tests.unit.check_api.fakes import FakeLimiter, call, node_of

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


async def test_the_published_document_is_the_one_that_nodes_give() -> None:
    told = (await call(node_of(FakeLimiter()), "GET", "/openapi.json")).json()
    again = "make it again: python -m services.check_api.openapi > docs/openapi.json"
    assert json.loads(PUBLISHED.read_text()) == told, again
    assert PUBLISHED.read_text() == openapi.text(), again


def test_every_path_of_a_node_is_in_it() -> None:
    # /v1/home is between nodes, in bytes of their own.
    assert set(node_of(FakeLimiter())._routes) - {"/v1/home"} <= set(openapi.document()["paths"])
