"""What pages say of a change they make: from which version it was tried, whatever kind of change it is."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from infra import install
from services.dashboard.app import STATIC

pytestmark = pytest.mark.timeout(180)
"""Node may have to be installed first."""

SCRIPT = """
import {{ readFileSync }} from "node:fs";
const source = readFileSync({path}, "utf8");
const {{ headersOf }} = await import("data:text/javascript," + encodeURIComponent(source));
console.log(JSON.stringify(headersOf(...{given})));
"""


@pytest.mark.parametrize(
    ("tried", "reason", "headers"),
    [
        ({"body": {"made_from": 17}}, "", {"If-Match": '"17"'}),
        ({"body": {"made_from": 17}}, "launch", {"If-Match": '"17"', "Apportion-Reason": "launch"}),
        ({"body": {"made_from": 0}}, "", {}),
        ({"body": {}}, "za\u017c\u00f3\u0142\u0107", {"Apportion-Reason": "za?\u00f3??"}),
        (None, "", {}),
    ],
)
def test_a_change_is_made_from_the_version_that_it_was_tried_with(
    tried: Any, reason: str, headers: dict[str, str]
) -> None:
    script = SCRIPT.format(path=json.dumps(str(STATIC / "change_headers.js")), given=json.dumps([tried, reason]))
    done = subprocess.run(
        [install.node(), "--input-type=module", "-e", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == headers
