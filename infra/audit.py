"""Are vulnerabilities known of what is deployed with us?  ``make audit`` asks the database of the package index.

First it is asked about a release that is known to be vulnerable: where that is not told, the database cannot be
reached, or is none, and finding nothing would mean nothing.

    python -m infra.audit [--if-reachable]

Exit code 0: none known; 1: some are, each is named; 2: it could not be looked up (0 with ``--if-reachable``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.install import ROOT, InstallFailed, cache_directory

AUDITOR = "pip-audit==2.9.0"
KNOWN_VULNERABLE = "jinja2==2.4.1"
"""CVE-2014-0012, CVE-2016-10745 and more."""
TIMEOUT_S = 240

Ask = Callable[[str], dict[str, Any]]
"""The auditor's report on the requirements in a text.  Raises InstallFailed when there is none."""


class NotLookedUp(Exception):
    """Nothing can be said.  Says why."""


def known_vulnerabilities(requirements: str, ask: Ask) -> list[str]:
    """A line for each.  Raises NotLookedUp."""
    try:
        if not _told(ask(KNOWN_VULNERABLE + "\n")):
            raise NotLookedUp(f"the database does not even know those of {KNOWN_VULNERABLE}, or cannot be reached")
        report = ask(requirements)
    except InstallFailed as error:
        raise NotLookedUp(str(error)) from None
    skipped = [part["name"] for part in report.get("dependencies", []) if "skip_reason" in part]
    if skipped:
        raise NotLookedUp(f"the database does not know {', '.join(skipped)}")
    return _told(report)


def _told(report: dict[str, Any]) -> list[str]:
    return [
        f"{part['name']} {part['version']}: {found['id']}"
        + (f", mended in {', '.join(found['fix_versions'])}" if found.get("fix_versions") else "")
        for part in report.get("dependencies", [])
        for found in part.get("vulns", [])
    ]


def _uv() -> str:
    ours = cache_directory() / "uv" / "bin" / "uv"
    return str(ours) if ours.exists() else "uv"


def deployed() -> str:
    """What is deployed with us, as requirements with versions.  Raises InstallFailed."""
    what = ["--frozen", "--no-dev", "--no-emit-project", "--no-hashes", "--no-annotate", "--no-header"]
    return _run([_uv(), "export", "-q", *what], accepted=(0,))


def ask_auditor(requirements: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "requirements.txt"
        file.write_text(requirements)
        command = [_uv(), "tool", "run", "-q", AUDITOR, "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        said = _run([*command, "-f", "json", "-r", str(file)], accepted=(0, 1))  # 1: it found some
    try:
        report: dict[str, Any] = json.loads(said)
    except ValueError:
        raise InstallFailed(f"{AUDITOR} wrote no report") from None
    return report


def _run(command: Sequence[str], accepted: tuple[int, ...]) -> str:
    try:
        done = subprocess.run(
            list(command), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{command[0]}: {error}") from None
    if done.returncode not in accepted or not done.stdout:
        raise InstallFailed(f"{' '.join(command[:5])} …: {(done.stderr.splitlines() or ['no word'])[-1]}")
    return done.stdout


def main(arguments: Sequence[str], ask: Ask = ask_auditor) -> int:
    try:
        found = known_vulnerabilities(deployed(), ask)
    except (NotLookedUp, InstallFailed) as error:
        print(f"audit: NOT LOOKED UP, so nothing is known: {error}", file=sys.stderr)
        return 0 if "--if-reachable" in arguments else 2
    for line in found:
        print(line)
    print(f"audit: {len(found)} known vulnerabilities in what is deployed with us", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
