"""The Grafana dashboard that is shipped.  [P]  ``python -m infra.monitoring`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Unit = Literal["reqps", "s", "percentunit", "short", "none"]


@dataclass(frozen=True, slots=True)
class Panel:
    """``queries``: (PromQL, legend).  ``stacked``: what adds up is drawn as adding up."""

    title: str
    says: str
    unit: Unit
    queries: tuple[tuple[str, str], ...]
    stacked: bool = False


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Checks",
        (
            Panel(
                "Checks by outcome",
                "All regions. Degraded ones are in it, with the outcome that callers got.",
                "reqps",
                (('sum by (outcome) (region:ratelimit_checks:rate1m{region=~"$region"})', "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Allowed by region",
                "What each region let through; the sum is what the limits bound.",
                "reqps",
                (('region:ratelimit_checks:rate1m{region=~"$region",outcome="allowed"}', "{{region}}"),),
                stacked=True,
            ),
            Panel(
                "Denied by rule",
                "The ten rules that deny most.",
                "reqps",
                (('topk(10, rule:ratelimit_checks:rate5m{outcome="denied"})', "{{domain}}/{{rule}}"),),
            ),
            Panel(
                "Nearest to their limits",
                "What the busiest key of each global rule asks for, by its limit. Above 1 a part is denied.",
                "percentunit",
                (
                    (
                        "topk(10, max by (domain, rule) (ratelimit_rule_nearness))",
                        "{{domain}}/{{rule}}",
                    ),
                ),
            ),
            Panel(
                "Slowest 1 % of checks",
                "From the first byte of a request to its answer, on the node.",
                "s",
                (('region:http_check_seconds:p99_5m{region=~"$region"}', "{{region}}"),),
            ),
        ),
    ),
    (
        "Shares",
        (
            Panel(
                "Keys away from their base",
                "How many global keys' shares have moved, by region.",
                "none",
                (('max by (region) (ratelimit_region_lent_keys{region=~"$region"})', "{{region}}"),),
            ),
            Panel(
                "Since the log was last read",
                "A region that is cut off grows here. After some 30 s it is at its base.",
                "s",
                (('min by (region) (ratelimit_sync_lag_seconds{region=~"$region"})', "{{region}}"),),
            ),
            Panel(
                "Least left of session and consent",
                "Of the points of each region: at 0 the share is the floor, then the base.",
                "s",
                (
                    ('min by (region) (ratelimit_session_left_seconds{region=~"$region"})', "session {{region}}"),
                    ('min by (region) (ratelimit_consent_left_seconds{region=~"$region"})', "consent {{region}}"),
                ),
            ),
            Panel(
                "Oldest lease without a word",
                "How long the leader has waited for a region to say that a lease is in force.",
                "s",
                (("max(ratelimit_leader_longest_unacked_seconds)", "oldest"),),
            ),
            Panel(
                "Epoch and records",
                "A step of the epoch is a takeover.",
                "none",
                (
                    ("max(ratelimit_leader_epoch)", "epoch"),
                    ("sum(rate(ratelimit_leader_records_total[1m]))", "records a second"),
                    ("sum(increase(ratelimit_records_refused_total[5m]))", "refused in 5 min"),
                ),
            ),
            Panel(
                "Until a share is in force",
                "From the leader's record until the region has said so: half, and 99 of 100.",
                "s",
                tuple(
                    (
                        f"histogram_quantile({part},"
                        " sum by (le) (rate(ratelimit_convergence_duration_seconds_bucket[5m])))",
                        name,
                    )
                    for part, name in (("0.5", "half"), ("0.99", "99 %"))
                ),
            ),
            Panel(
                "Still to be read of Kafka",
                "Messages after the place of whoever is furthest behind.",
                "none",
                (("max by (topic, region) (ratelimit_topic_behind)", "{{topic}} {{region}}"),),
            ),
            Panel(
                "Until Kafka has what is sent",
                "99 of 100, by region and topic, of sends that reached it. An ocean's round trip is in it.",
                "s",
                (
                    (
                        "histogram_quantile(0.99, sum by (region, messaging_destination_name, le) (rate("
                        'messaging_client_operation_duration_seconds_bucket{error_type="",region=~"$region"}[5m])))',
                        "{{region}} {{messaging_destination_name}}",
                    ),
                ),
            ),
            Panel(
                "Reports",
                "What regions send to the hub. Quiet keys send nothing.",
                "reqps",
                (('sum by (region) (rate(ratelimit_agent_reports_total{region=~"$region"}[1m]))', "{{region}}"),),
            ),
        ),
    ),
    (
        "Redis and nodes",
        (
            Panel(
                "Decided without Redis",
                "The part of checks that nodes decided by themselves.",
                "percentunit",
                (('region:ratelimit_degraded_checks:ratio2m{region=~"$region"}', "{{region}}"),),
            ),
            Panel(
                "Slowest 1 % of calls to Redis",
                "Until a server has answered the call of a check.",
                "s",
                (
                    (
                        "histogram_quantile(0.99, sum by (region, server_address, server_port, le) (rate("
                        'db_client_operation_duration_seconds_bucket{region=~"$region"}[5m])))',
                        "{{region}} {{server_address}}:{{server_port}}",
                    ),
                ),
            ),
            Panel(
                "Open breakers",
                "Shards that did not answer in time, by region.",
                "none",
                (
                    (
                        'sum by (region) (max by (region, point) (ratelimit_shard_breaker{region=~"$region"})'
                        " > bool 1)",
                        "{{region}}",
                    ),
                ),
            ),
            Panel(
                "Points that lost what they knew",
                "Restarts, promotions and clock steps of Redis servers.",
                "none",
                (
                    (
                        'sum by (region) (increase(ratelimit_point_resets_total{region=~"$region"}[5m]))',
                        "{{region}}",
                    ),
                ),
            ),
            Panel(
                "Leased tokens",
                "Tokens that nodes hold ahead of hot keys' checks.",
                "short",
                (('sum by (region) (ratelimit_lease_tokens_out{region=~"$region"})', "{{region}}"),),
            ),
            Panel(
                "Versions of rules",
                "The oldest and the newest that are in force somewhere.",
                "none",
                (("max(ratelimit_rules_version)", "newest"), ("min(ratelimit_rules_version)", "oldest")),
            ),
            Panel(
                "Lost",
                "Refunds, local decisions and demand that found no room or were never delivered.",
                "none",
                (
                    ("sum(increase(ratelimit_refunds_dropped_total[5m]))", "refunds"),
                    ("sum(increase(ratelimit_debts_dropped_total[5m]))", "local decisions"),
                    ("sum(increase(ratelimit_demand_dropped_total[5m]))", "demand"),
                ),
            ),
        ),
    ),
)

_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(_row(len(panels) + 1, title, top))
        top += 1
        for index, panel in enumerate(row):
            place = {
                "x": index % _ACROSS * _WIDTH,
                "y": top + index // _ACROSS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            panels.append(_panel(len(panels) + 1, panel, place))
        top += -(-len(row) // _ACROSS) * _HEIGHT
    return {
        "uid": "apportion",
        "title": "Apportion",
        "tags": ["apportion", "rate limits"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source(), _regions()]},
        "panels": panels,
    }


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": _WIDTH * _ACROSS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom = {
        "fillOpacity": 20 if panel.stacked else 0,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _regions() -> dict[str, Any]:
    return {
        "name": "region",
        "label": "Region",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(ratelimit_agent_active, region)", "refId": "regions"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
