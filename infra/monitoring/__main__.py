"""``python -m infra.monitoring``: write Prometheus' rules and Grafana's dashboard from their tables."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from infra.monitoring.alerts import rules_file
from infra.monitoring.panels import dashboard

INFRA = Path(__file__).resolve().parent.parent
RULES = INFRA / "prometheus" / "apportion.rules.yaml"
DASHBOARD = INFRA / "grafana" / "apportion.json"

HEAD = "# Written by `python -m infra.monitoring` from infra/monitoring/alerts.py: change it there.\n"


def texts() -> dict[Path, str]:
    """What each file should hold."""
    rules = yaml.safe_dump(rules_file(), sort_keys=False, width=1000, allow_unicode=True)
    return {RULES: HEAD + rules, DASHBOARD: json.dumps(dashboard(), indent=1) + "\n"}


def main() -> None:
    for path, text in texts().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
