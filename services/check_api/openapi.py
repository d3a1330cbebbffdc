"""``python -m services.check_api.openapi > docs/openapi.json``: the document of a node's paths, for all to see."""

from __future__ import annotations

import json
import sys
from typing import Any

from regional_limiter.limiter import Done, LimiterStatus
from regional_limiter.model.decision import Check
from services.check_api.app import NodeApp, NodeOptions
from services.check_api.routes import build_web


def document() -> dict[str, Any]:
    """What a node answers to ``GET /openapi.json``; it is the same on all."""
    return build_web(NodeApp(_Nobody(), NodeOptions("", ""))).openapi()  # type: ignore[arg-type]


class _Nobody:
    """No document depends on a limiter."""

    def submit(self, check: Check, done: Done) -> None:
        raise NotImplementedError

    def status(self) -> LimiterStatus:
        return LimiterStatus(0, 0)


def text() -> str:
    """The file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
