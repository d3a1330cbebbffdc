"""The control API as commands call it."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.output import fail, print_faults

if TYPE_CHECKING:
    import httpx

URL_VARIABLE = "APPORTION_CONTROL_URL"
TOKEN_VARIABLE = "APPORTION_CONTROL_TOKEN"
LOCAL_STATUS = Path(".local/default/status.json")
TIMEOUT_S = 10.0
HELP = "Control API; default: $APPORTION_CONTROL_URL, else the running local system's."


def control_url(given: str | None) -> str:
    """The address to call: what was given, the environment's, or the local system's.  Ends the process if none."""
    url = given or os.environ.get(URL_VARIABLE) or _local_url()
    if url is None:
        fail(f"no control API known: give --control URL or ${URL_VARIABLE}, or start one with `apportion local up`")
    return url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"


def _local_url() -> str | None:
    """From the status file of the local system here or in a directory above."""
    for directory in (Path.cwd(), *Path.cwd().parents):
        try:
            status = json.loads((directory / LOCAL_STATUS).read_text())
        except (OSError, ValueError):
            continue
        url = status.get("control_api") if isinstance(status, dict) else None
        if isinstance(url, str):
            return url
    return None


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

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        import httpx  # here: commands that call nobody need not wait for it

        self.url = url
        headers = {"Apportion-Author": _author()}
        if token := os.environ.get(TOKEN_VARIABLE):
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, transport=transport)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer.  Raises Refused; ends the process with 2 when nobody answers."""
        import httpx

        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            fail(f"{self.url} does not answer: {str(error) or type(error).__name__}")
        if answer.is_success:
            return answer
        try:
            problem = answer.json()
        except ValueError:
            problem = {}
        raise Refused(answer.status_code, problem if isinstance(problem, dict) else {})


def open_control(given: str | None) -> Control:
    return Control(control_url(given))


def end_refused(source: str, error: Refused) -> None:
    """Show a refusal, with every fault, and end: 1 when it was decided, 2 when nobody could decide."""
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
