"""What a local system asks of its control API and nodes once they run: the first rules, and that they arrived."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from infra.local.layout import Layout
from infra.processes import StartFailed, check_wanted

RULES = Path(__file__).with_name("rules.yaml")
ACCEPTED_S = 60.0
ARRIVED_S = 20.0
_UNANSWERED = (urllib.error.URLError, http.client.HTTPException, OSError)


def regions_of(rules: Path) -> tuple[str, ...] | None:
    """The regions that a rule file names, in its order; None when it names none.  Raises StartFailed."""
    # Not at the top: only `up` needs the rules' grammar.
    from regional_limiter.model.errors import InvalidRules
    from regional_limiter.rules import parse_document
    from regional_limiter.rules.text import read_document

    try:
        rule_set = parse_document(read_document(rules.read_bytes(), "yaml"))
    except OSError as error:
        raise StartFailed(f"{rules} cannot be read: {error.strerror}") from None
    except InvalidRules as error:
        faults = "\n".join(f"  {fault.place}: {fault.problem}" for fault in error.faults)
        raise StartFailed(f"{rules} is refused:\n{faults}") from None
    return tuple(rule_set.regions) or None


def load_rules(layout: Layout, rules: Path, *, replace: bool) -> int:
    """Propose the rules until somebody has decided them; the set's version.

    ``replace`` False keeps a set that is there already (1, the least version).  Raises StartFailed when the
    rules are refused, or when nobody decides within ``ACCEPTED_S``.
    """
    end = time.monotonic() + ACCEPTED_S
    headers = {"Content-Type": "application/yaml", "Apportion-Author": "local", "Apportion-Reason": "first rules"}
    if not replace:
        headers["If-None-Match"] = "*"
    url = f"{layout.control_api}/rulesets/default"
    while True:
        check_wanted()
        status, answer = _call("PUT", url, rules.read_bytes(), headers, timeout_s=15.0)
        if status == 504 and "proposal" in answer:
            # Written, but nobody leads yet.  Proposed again it would be decided twice, the second time refused.
            status, answer = _outcome(layout, str(answer["proposal"]), end) or (status, answer)
        if status in (200, 201):
            return int(answer["version"])
        if status in (409, 412) and not replace:
            return 1
        if status is not None and status < 500:
            raise StartFailed(f"the control API refuses {rules}: {json.dumps(answer)}")
        if time.monotonic() >= end:
            raise StartFailed(
                f"the control API has not accepted {rules}: {status or 'no answer'} {json.dumps(answer)}"
            )
        time.sleep(0.2)


def _outcome(layout: Layout, proposal: str, end: float) -> tuple[int, dict[str, Any]] | None:
    """What became of a proposal, as the answer that it would have had; None when that is unknown at ``end``."""
    while time.monotonic() < end:
        check_wanted()
        _, told = _call("GET", f"{layout.control_api}/history?domain=default")
        for change in told.get("changes", []):
            if change["id"] == proposal:
                return 200 if change["accepted"] else 409 if change["conflict"] else 422, change
        time.sleep(0.2)
    return None


def wait_for_rules(layout: Layout, version: int) -> list[str]:
    """Wait until every node uses rules of at least ``version``; the nodes that do not after ``ARRIVED_S``."""
    end = time.monotonic() + ARRIVED_S
    left = [url for region in layout.regions for url in layout.node_urls(region)]
    while left and time.monotonic() < end:
        check_wanted()
        left = [url for url in left if not _has_rules(url, version)]
        if left:
            time.sleep(0.2)
    return left


def _has_rules(node: str, version: int) -> bool:
    status, answer = _call("GET", f"{node}/v1/node")
    return status == 200 and int(answer.get("rules_version") or 0) >= version


def _call(
    method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None, timeout_s: float = 2.0
) -> tuple[int | None, dict[str, Any]]:
    """The status (None: no answer) and the JSON object of the answer."""
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    except _UNANSWERED as error:
        return None, {"error": str(error)}
    try:
        answer = json.loads(content)
    except ValueError:
        answer = {}
    return status, answer if isinstance(answer, dict) else {}
