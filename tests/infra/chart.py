"""The chart as helm renders it, and what every rendered object must be like."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.deploy_tools import kubernetes_tools
from infra.install import ROOT

KUBERNETES = ROOT / "infra" / "kubernetes"
CHART = KUBERNETES / "apportion"
VERSION = "1.33"

Object = dict[str, Any]


class Refused(Exception):
    """What helm said when it refused the values."""


def helm(*arguments: str, values: Object, directory: Path) -> str:
    """Run helm on the chart with ``values``; its output.  Raises Refused."""
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(kubernetes_tools().helm), *arguments, str(CHART), "-f", str(file), "--namespace", "apportion"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def render(values: Object, directory: Path, release: str = "edge") -> list[Object]:
    """The objects of a release.  Raises Refused."""
    return objects_of(helm("template", release, values=values, directory=directory))


def objects_of(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]


def by_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod template: the name of what makes the pods, and the template."""
    for found in objects:
        if found["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield found["metadata"]["name"], found["spec"]["template"]
