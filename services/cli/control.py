"""The control API as commands call it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from services.cli.output import fail, print_faults
from services.cli.trust import trusted

if TYPE_CHECKING:
    from httpx import Response

URL_VARIABLE = "APPORTION_CONTROL_URL"
TOKEN_VARIABLE = "APPORTION_CONTROL_TOKEN"
LOCAL_SYSTEM = Path(".local/default")
TIMEOUT_S = 10.0
HELP = (
    "Control API; default: $APPORTION_CONTROL_URL, else the local system's. "
    "Its token, where it wants one: $APPORTION_CONTROL_TOKEN; by whom an https server is known: $APPORTION_CA."
)


def control_url(given: str | None) -> str:
    """The address to call: what was given, the environment's, or the local system's.  Ends the process if none."""
    url = given or os.environ.get(URL_VARIABLE) or _local_url()
    if url is None:
        fail(
            f"no control API known: give --control URL or ${URL_VARIABLE} (`apportion dev` says its own),"
            " or start one with `apportion local up`"
        )
    return url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"


def _local_url() -> str | None:
    """Of the local system here or in a directory above."""
    from infra.local.layout import load_layout

    given = os.environ.get("APPORTION_LOCAL_DIR")
    places = [Path(given)] if given else [place / LOCAL_SYSTEM for place in (Path.cwd(), *Path.cwd().parents)]
    for place in places:
        if (layout := load_layout(place)) is not None:
            return layout.control_api
    return None


class NoAnswer(Exception):
    """Nobody answered."""


class Refused(Exception):
    """The control API answered with a problem."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail") or problem.get("title") or f"status {status}")
        self.status = status
        self.problem = problem

    def faults(self) -> list[tuple[str, str]]:
        errors = self.problem.get("errors") or []
        return [(str(error.get("field", "")), str(error.get("problem", ""))) for error in errors]


class Control:
    """Calls one control API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
        **options: Any,
    ) -> Response:
        """The answer.  Raises Refused, NoAnswer."""
        import httpx  # here: commands that call nobody need not wait for it

        own_machine = httpx.URL(self.url).host in ("localhost", "127.0.0.1", "::1")  # no proxy leads there
        mine = {"Apportion-Author": _author(), **(headers or {})}
        if token := os.environ.get(TOKEN_VARIABLE):
            mine["Authorization"] = f"Bearer {token}"
        try:
            with httpx.Client(
                base_url=self.url, timeout=timeout, trust_env=not own_machine, verify=trusted()
            ) as client:
                answer = client.request(method, path, headers=mine, **options)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{self.url} does not answer: {str(error) or type(error).__name__}") from error
        if answer.is_success:
            return answer
        try:
            problem = answer.json()
        except ValueError:
            problem = {}
        raise Refused(answer.status_code, problem if isinstance(problem, dict) else {})


def open_control(given: str | None) -> Control:
    return Control(control_url(given))


def reason_header(reason: str) -> dict[str, str]:
    """Headers that say why, for the history."""
    return {"Apportion-Reason": reason.encode("ascii", "replace").decode()} if reason else {}


def end_refused(source: str, error: Refused | NoAnswer) -> NoReturn:
    """Show a refusal, with every fault, and end: 1 when it was decided, 2 when nobody could decide."""
    if isinstance(error, NoAnswer):
        fail(str(error))
    if error.faults():
        print_faults(source, error.faults())
        fail(str(error), 1)
    fail(f"{source}: {error}", 2 if error.status >= 500 else 1)


def _author() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
    return name.encode("ascii", "replace").decode()
