"""What is deployed with us: under which licences, and whether the bill of materials names all of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

import pytest

from infra.install import ROOT

ALLOWED = re.compile(
    r"^(Apache(-2\.0| Software License)|MIT( License)?|BSD(-[23]-Clause| License)|3-Clause BSD License|ISC.*"
    r"|PSF-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\))$"
)
"""All of them may be used in what is sold; MPL asks that its own files stay open."""


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def deployed(name: str, seen: set[str]) -> Iterator[Distribution]:
    """``name`` and whatever it stands on, each once; what is for other systems is not installed here."""
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    yield found
    for requirement in found.requires or []:
        if "extra ==" not in requirement:
            yield from deployed(_name(requirement), seen)


DEPLOYED = list(deployed("apportion", set()))


def licences(of: Distribution) -> list[str]:
    told = of.metadata
    if expression := told.get("License-Expression"):
        return re.split(r" (?:OR|AND) ", str(expression))
    classifiers = [str(line) for line in told.get_all("Classifier") or []]
    named = [line.split("::")[-1].strip() for line in classifiers if line.startswith("License ::")]
    return named or [str(told.get("License") or "none named").splitlines()[0]]


@pytest.mark.parametrize("of", DEPLOYED, ids=lambda of: str(of.name))
def test_its_licence_allows_commercial_use(of: Distribution) -> None:
    for licence in licences(of):
        assert ALLOWED.match(licence), f"{of.name}: {licence}"


def test_the_bill_of_materials_names_whatever_is_deployed() -> None:
    done = subprocess.run(["make", "-s", "sbom"], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    bill = json.loads((ROOT / "dist" / "sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    named = {_name(part["name"]): part["version"] for part in bill["components"]}
    for of in DEPLOYED:
        if of.name != "apportion":
            assert named.get(_name(str(of.name))) == of.version, of.name
    assert "pytest" not in named
