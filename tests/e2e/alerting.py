"""A real Prometheus beside a local system: the rules that are shipped, with shorter waits, over what it scrapes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from infra.deploy_tools import prometheus
from infra.monitoring.alerts import rules_file
from infra.processes import ProcessDirectory, stop, wait_ready
from infra.region.region import answers
from tests.e2e.system import LocalSystem

SHORTER = 10
"""Windows and waits are divided by this: three quarters of an hour of waiting are left out."""
SCRAPE_S = 1
WINDOW_S_LEAST = 4 * SCRAPE_S
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def shorter_rules() -> dict[str, Any]:
    """What is shipped; thresholds are as they are."""
    document = rules_file()
    for group in document["groups"]:
        group["interval"] = f"{SCRAPE_S}s"
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"(\[|offset )(\d+)([smh])", _shorter, rule["expr"])
            if "for" in rule:
                rule["for"] = re.sub(r"()(\d+)([smh])", _shorter, rule["for"])
    return document


def _shorter(found: re.Match[str]) -> str:
    seconds = int(found[2]) * _SECONDS[found[3]]
    return f"{found[1]}{max(WINDOW_S_LEAST, seconds // SHORTER) if seconds else 0}s"


class Prometheus:
    """``fires`` and ``ends`` wait; an alert is named by its labels where it has any."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10, trust_env=False)

    def query(self, expr: str) -> list[dict[str, Any]]:
        answer = self._http.get("/api/v1/query", params={"query": expr}).raise_for_status().json()
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> list[dict[str, str]]:
        """The labels of every alert that fires now."""
        answer = self._http.get("/api/v1/alerts").raise_for_status().json()
        return [alert["labels"] for alert in answer["data"]["alerts"] if alert["state"] == "firing"]

    def fires(self, name: str, labels: Mapping[str, str], within_s: float) -> float:
        """Seconds until it does."""
        return self._until(name, labels, True, within_s)

    def ends(self, name: str, labels: Mapping[str, str], within_s: float) -> float:
        return self._until(name, labels, False, within_s)

    def _until(self, name: str, labels: Mapping[str, str], wanted: bool, within_s: float) -> float:
        began = time.monotonic()
        known = {"alertname": name, **labels}.items()
        while True:
            firing = self.firing()
            if any(known <= found.items() for found in firing) == wanted:
                return time.monotonic() - began
            if time.monotonic() - began > within_s:
                what = "fire" if wanted else "end"
                raise AssertionError(f"{name} {dict(labels)} does not {what} within {within_s} s; firing: {firing}")
            time.sleep(0.3)

    def close(self) -> None:
        self._http.close()


@contextmanager
def watching(system: LocalSystem, directory: Path, port: int, exporters: Sequence[str]) -> Iterator[Prometheus]:
    """Everything of the system that has metrics, and ``exporters``, is scraped."""
    directory.mkdir()
    (directory / "rules.yaml").write_text(yaml.safe_dump(shorter_rules()))
    targets = [*system.nodes(*system.addresses["regions"]), system.addresses["control_api"]]
    targets += [region["sync"] for region in system.addresses["regions"].values()]
    targets.append(system.addresses["dashboard"])
    addresses = [urlsplit(url).netloc for url in targets]
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": "apportion", "static_configs": [{"targets": addresses}]},
            {"job_name": "exporters", "static_configs": [{"targets": list(exporters)}]},
        ],
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [str(prometheus()), f"--config.file={directory / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}"
    watch = Prometheus(url)
    processes = ProcessDirectory(directory)
    process = processes.start("prometheus", command)
    try:
        wait_ready(processes, process, lambda: answers(f"{url}/-/ready"), patience_s=60)
        yield watch
    finally:
        watch.close()
        stop([process], patience_s=20)
