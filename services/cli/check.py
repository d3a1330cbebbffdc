"""``apportion check``: ask a node whether something may happen now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.load import TOKEN_VARIABLE
from services.cli.output import fail, print_faults, print_json
from services.cli.parsing import parse_attributes
from services.cli.trust import trusted

if TYPE_CHECKING:
    import httpx

EXAMPLE = 'Example: apportion check --client-key user:42 --resource "POST /orders" --attr tier=free'
URL_VARIABLE = "APPORTION_CHECK_URL"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("check", epilog=EXAMPLE)(check)


def check(
    client_key: Annotated[str, typer.Option(help="Who asks.")],
    resource: Annotated[str, typer.Option(help="What for.")],
    url: Annotated[str, typer.Option(envvar=URL_VARIABLE, help="A node of the region.")] = "http://127.0.0.1:8101",
    cost: Annotated[int, typer.Option(help="Tokens; 0 only looks.")] = 1,
    attr: Annotated[list[str] | None, typer.Option(help="An attribute, as tier=free; repeatable.")] = None,
    domain: Annotated[str, typer.Option(help="The domain of the rules.")] = "default",
    request_id: Annotated[str | None, typer.Option(help="Asked again within 60 s: one answer, one charge.")] = None,
    timeout_ms: Annotated[int, typer.Option(min=1, help="How long to wait for the answer.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="The node's answer as it is.")] = False,
) -> None:
    """Ask once.  Exit code 0: allowed, 1: denied, 2: no decision."""
    body: dict[str, Any] = {
        "client_key": client_key,
        "resource": resource,
        "cost": cost,
        "attributes": parse_attributes(attr or []),
        "domain": domain,
    }
    if request_id is not None:
        body["request_id"] = request_id
    answer = _ask(url, body, timeout_ms / 1000)
    if as_json:
        print_json(answer)
    else:
        typer.echo(text_of(answer))
    raise typer.Exit(0 if answer["allowed"] is True else 1)


def _ask(url: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    import httpx

    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(timeout=timeout_s, trust_env=False, verify=trusted()) as client:
            response = client.post(f"{url.rstrip('/')}/v1/check?detail=1", json=body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        fail(f"{url}: no answer: {str(error) or type(error).__name__}")
    document = _json_of(response)
    if response.status_code == 422 and isinstance(document.get("errors"), list):
        faults = [(str(item.get("field")), str(item.get("problem"))) for item in document["errors"]]
        print_faults(url, faults)
        raise typer.Exit(2)
    if response.status_code != 200 or not isinstance(document.get("allowed"), bool):
        fail(f"{url}: status {response.status_code}: {document.get('detail', 'not an answer of a node')}")
    return document


def _json_of(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _why_degraded(answer: dict[str, Any]) -> str:
    verdicts = answer.get("verdicts", [])
    if any(item["share"] == "floor" for item in verdicts) and not any(item["degraded"] for item in verdicts):
        return "at the floor: the region has no word from the leader, and its base may be lent"
    return "decided without the region's Redis"


def text_of(answer: dict[str, Any]) -> str:
    """The answer for people: the decision first, then every rule that had a say."""
    lines = ["allowed" if answer["allowed"] else f"denied: {answer['reason']}"]
    if answer["rule"] is None:
        lines.append("no rule matches")
    if not answer["allowed"]:
        wait_ms = answer["retry_after_ms"]
        lines.append("waiting does not help" if wait_ms is None else f"try again in {wait_ms} ms")
    if answer.get("wait_ms"):
        lines.append(f"its turn is in {answer['wait_ms']} ms")
    if answer.get("lease_ms"):
        lines.append(f"holds its slots for {answer['lease_ms']} ms as {answer['lease_id']}")
    if answer["degraded"]:
        lines.append(f"degraded: {_why_degraded(answer)}")
    for item in answer.get("verdicts", []):
        share = f", share {item['share_units'] / 100:g} % ({item['share']})" if item["share"] else ""
        word = "allows" if item["allowed"] else f"denies ({item['reason']})"
        lines.append(
            f"  {item['rule']} {word}: {item['remaining']} of {item['limit']} left,"
            f" whole in {item['reset_after_ms']} ms{share}"
        )
    return "\n".join(lines)
