"""The recording rules and alerts that are shipped for Prometheus.  [P]

One table; ``python -m infra.monitoring`` writes ``infra/prometheus/apportion.rules.yaml`` from it.  Every alert has
a section of its name in docs/runbook.md.  Metrics of others' exporters are in EXTERNAL; what needs them says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

RUNBOOK: Final = "docs/runbook.md"

EXTERNAL: Final = frozenset(
    {
        *("redis_memory_used_bytes", "redis_memory_max_bytes", "up"),
        *("node_timex_offset_seconds", "node_timex_frequency_adjustment_ratio"),
    }
)
"""Of redis_exporter, node_exporter, and Prometheus itself."""


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """``means``: what it means for callers, one sentence; labels in it as Prometheus writes them."""

    name: str
    expr: str
    held_for: str
    severity: Literal["page", "ticket"]
    summary: str
    means: str
    needs: tuple[str, ...] = field(default=())

    @property
    def anchor(self) -> str:
        """The heading of its section, as links are made of headings."""
        return self.name.lower()


RECORDS: Final = (
    Record("region:ratelimit_checks:rate1m", "sum by (region, outcome) (rate(ratelimit_checks_total[1m]))"),
    Record("rule:ratelimit_checks:rate5m", "sum by (domain, rule, outcome) (rate(ratelimit_checks_total[5m]))"),
    Record(
        "region:ratelimit_degraded_checks:ratio2m",
        'sum by (region) (rate(ratelimit_degraded_checks_total{cause="store"}[2m]))'
        " / sum by (region) (rate(ratelimit_checks_total[2m]))",
    ),
    Record(
        "region:http_check_seconds:p99_5m",
        "histogram_quantile(0.99, sum by (region, le)"
        ' (rate(http_server_request_duration_seconds_bucket{http_route="/v1/check"}[5m])))',
    ),
)

ALERTS: Final = (
    Alert(
        "RegionCut",
        "min by (region) (ratelimit_sync_lag_seconds) > 5",
        "10s",
        "ticket",
        "{{ $labels.region }} has not read the hub's log for {{ $value | humanizeDuration }}",
        "Its checks are answered. It keeps what it holds for some 20 s, then the floor, then its base.",
    ),
    Alert(
        "LeaderMissing",
        "sum(ratelimit_leader_leading) < 1 or absent(ratelimit_leader_leading)",
        "30s",
        "page",
        "nobody leads",
        "Checks are answered. Shares cannot grow; as sessions end, every region goes to its base.",
    ),
    Alert(
        "TwoLeaders",
        "sum(ratelimit_leader_leading) > 1",
        "2m",
        "ticket",
        "{{ $value }} candidates say that they lead",
        "No limit is exceeded: the log takes records of one of them. Growth may be slow.",
    ),
    Alert(
        "AgentMissing",
        # A process that is gone has no series: a region whose nodes are heard and no agent is one without, too.
        "sum by (region) (ratelimit_agent_active) < 1"
        " or (count by (region) (ratelimit_degraded_checks_total) unless sum by (region) (ratelimit_agent_active))",
        "1m",
        "page",
        "no agent acts for {{ $labels.region }}",
        "Its checks are answered, with its base from half a minute on. New rules do not reach its nodes.",
    ),
    Alert(
        "RecordRefused",
        "increase(ratelimit_records_refused_total[5m]) > 0",
        "0s",
        "page",
        "an invariant refused a record",
        "No limit was exceeded: the record was not taken. But something did what it must never do.",
    ),
    Alert(
        "ConvergenceSlow",
        # A lease that is never acknowledged ends with its session, and the next one begins to wait.
        "max(max_over_time(ratelimit_leader_longest_unacked_seconds[30s])) > 2",
        "1m",
        "ticket",
        "a lease has waited {{ $value | humanizeDuration }} for its region's word",
        "A region that needs more than its share waits for it, and denies meanwhile.",
    ),
    Alert(
        "LogNotAppended",
        "increase(ratelimit_leader_append_failures_total[5m]) > 3",
        "0s",
        "ticket",
        "the leader could not append {{ $value | humanize }} batches in 5 minutes",
        "Shares move late or not at all.",
    ),
    Alert(
        "TopicSilent",
        "max by (topic, instance) (ratelimit_topic_silence_seconds) > 30",
        "30s",
        "ticket",
        "{{ $labels.instance }} has read nothing of {{ $labels.topic }} for {{ $value | humanizeDuration }}",
        "What it shows is old. No limit depends on it.",
    ),
    Alert(
        "ConsumerLag",
        "max by (topic, region, instance) (ratelimit_topic_behind) > 1000",
        "1m",
        "ticket",
        "{{ $labels.instance }} has {{ $value | humanize }} messages of {{ $labels.topic }} still to read",
        "It acts on what is old: shares move late in its region, or what it shows is from before.",
    ),
    Alert(
        "ChecksDegraded",
        "region:ratelimit_degraded_checks:ratio2m > 0.01",
        "1m",
        "page",
        "{{ $value | humanizePercentage }} of the checks of {{ $labels.region }} are decided without Redis",
        "Each rule's on_store_failure decides: by default nodes go on with their part of the share.",
    ),
    Alert(
        "BreakerOpen",
        "max by (region, point) (ratelimit_shard_breaker) >= 2",
        "30s",
        "ticket",
        "shard {{ $labels.point }} of {{ $labels.region }} does not answer in time",
        "The keys of that shard are decided by the nodes; the others are untouched.",
    ),
    Alert(
        "PointReset",
        "increase(ratelimit_point_resets_total[10m]) > 0",
        "0s",
        "ticket",
        "a Redis server of {{ $labels.region }} lost what it knew of shares",
        "It was restarted, promoted, or its clock stepped. Its keys are at the floor until it has been told anew.",
    ),
    Alert(
        "CheckSlow",
        "region:http_check_seconds:p99_5m > 0.015",
        "5m",
        "ticket",
        "1 % of the checks of {{ $labels.region }} take longer than {{ $value | humanizeDuration }}",
        "Callers that give up after 20 ms begin to go without an answer.",
    ),
    Alert(
        "CheckErrors",
        "sum by (region) (rate(http_server_request_duration_seconds_count"
        '{http_route=~"/v1/.*",http_response_status_code=~"5.."}[5m]))'
        ' / sum by (region) (rate(http_server_request_duration_seconds_count{http_route=~"/v1/.*"}[5m])) > 0.001',
        "2m",
        "page",
        "{{ $value | humanizePercentage }} of the requests to nodes of {{ $labels.region }} are answered 5xx",
        "Callers without an answer do what they do by themselves: most allow.",
    ),
    Alert(
        "DenialsRise",
        # A rule that had denied nothing before has no series of that: hence "unless it is less".
        'rule:ratelimit_checks:rate5m{outcome="denied"} > 1'
        ' unless rule:ratelimit_checks:rate5m{outcome="denied"}'
        ' <= 5 * avg_over_time(rule:ratelimit_checks:rate5m{outcome="denied"}[1h] offset 10m)',
        "5m",
        "ticket",
        "{{ $labels.domain }}/{{ $labels.rule }} denies {{ $value | humanize }} a second, five times as before",
        "Somebody sends much more than before, or a rule is wrong.",
    ),
    Alert(
        "NearQuota",
        "max by (domain, rule) (ratelimit_rule_nearness) > 0.8",
        "10m",
        "ticket",
        "the busiest key of {{ $labels.domain }}/{{ $labels.rule }} asks for"
        " {{ $value | humanizePercentage }} of its limit",
        "Above 100 % a part of what it asks for is denied.",
    ),
    Alert(
        "AtQuota",
        'rule:ratelimit_checks:rate5m{outcome="denied"} / ignoring (outcome) group_left'
        " sum by (domain, rule) (rule:ratelimit_checks:rate5m) > 0.05",
        "15m",
        "ticket",
        "{{ $labels.domain }}/{{ $labels.rule }} has denied {{ $value | humanizePercentage }} for a while",
        "Its clients are at their limit for good: the limit is too low for them, or they do not wait.",
    ),
    Alert(
        "RuleVersionsApart",
        "max(ratelimit_rules_version) - min(ratelimit_rules_version) > 0",
        "2m",
        "ticket",
        "nodes or agents use rules that are {{ $value }} versions apart",
        "A change of rules has not reached everybody.",
    ),
    Alert(
        "RulesRefused",
        "increase(ratelimit_refused_sets_total[10m]) > 0",
        "0s",
        "page",
        "a node of {{ $labels.region }} refused a rule set",
        "It goes on with the rules before. It is likely older than the rules.",
    ),
    Alert(
        "ChargesLost",
        "increase(ratelimit_debts_dropped_total[10m]) + increase(ratelimit_refunds_dropped_total[10m]) > 0",
        "0s",
        "ticket",
        "{{ $value | humanize }} local decisions or refunds of {{ $labels.region }} were not charged",
        "After an outage the buckets know less than was allowed, or less than was given back.",
    ),
    Alert(
        "RedisMemory",
        "redis_memory_used_bytes / (redis_memory_max_bytes > 0) > 0.85",
        "5m",
        "page",
        "Redis {{ $labels.instance }} has used {{ $value | humanizePercentage }} of its memory",
        "When it is full, new clients' keys are decided by the nodes. It must not evict.",
        needs=("redis_exporter",),
    ),
    Alert(
        "ClockOff",
        "abs(node_timex_offset_seconds) > 0.2",
        "2m",
        "ticket",
        "the clock of {{ $labels.instance }} is off by {{ $value | humanizeDuration }}",
        "The protocol bears drift, not steps: when it is corrected at once, that Redis forgets its leases.",
        needs=("node_exporter",),
    ),
    Alert(
        "ClockRate",
        "abs(node_timex_frequency_adjustment_ratio - 1) > 0.0005",
        "2m",
        "ticket",
        "the clock of {{ $labels.instance }} is made to run {{ $value | humanizePercentage }} too fast or too slow",
        "The protocol bears a thousandth. Beyond it a region may keep a lease longer than the leader counts it.",
        needs=("node_exporter",),
    ),
)


def rules_file() -> dict[str, Any]:
    """The file that Prometheus reads."""
    records = [{"record": record.name, "expr": record.expr} for record in RECORDS]
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.held_for,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.means,
                "runbook_url": f"{RUNBOOK}#{alert.anchor}",
            },
        }
        for alert in ALERTS
    ]
    return {
        "groups": [
            {"name": "apportion-records", "interval": "15s", "rules": records},
            {"name": "apportion-alerts", "interval": "15s", "rules": alerts},
        ]
    }
