"""What Prometheus reads of a node: OpenTelemetry instruments that look at :mod:`counts` when somebody asks.

Nothing here is on the way of a check, and nothing here is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import ObservableCounter, ObservableGauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from regional_limiter.limiter import LimiterStatus
from services.check_api.counts import DURATION_BOUNDS_S, SERIES_MOST, Counts, Durations
from services.telemetry import Exposition, observed

BREAKER_STATES: Final = {"closed": 0, "open": 2}


class Metrics:
    """Exports ``counts`` and what ``status`` tells as Prometheus text.  ``region`` is a label of every series."""

    def __init__(self, region: str, counts: Counts, status: Callable[[], LimiterStatus]) -> None:
        self.counts = counts
        self._status = status
        limits = {ObservableCounter: SERIES_MOST + 16, ObservableGauge: SERIES_MOST}
        self._exposition = Exposition("check-api", region, limits)
        self._exposition.registry.register(_DurationCollector(region, counts))
        self._register()

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return self._exposition.text()

    def close(self) -> None:
        self._exposition.close()

    def _register(self) -> None:
        meter = self._exposition.meter
        counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
        counts = self.counts
        counter("ratelimit.checks", [self._checks], "{check}", "Checks answered, by named rule and outcome")
        counter(
            "ratelimit.degraded_checks",
            [self._degraded_checks],
            "{check}",
            "Checks answered without the region's Redis (cause store), or at the floor (cause floor)",
        )
        words = "Degraded decisions, by cause: floor is a cut link, all others are Redis"
        counter("ratelimit.degraded", [self._degraded], "{decision}", words)
        counter(
            "ratelimit.repeated_checks",
            [observed(lambda: counts.repeated)],
            "{check}",
            "Answers given again to a request with an id: charged, and counted as a check, the first time",
        )
        counter(
            "ratelimit.unexpected_errors",
            [observed(lambda: counts.unexpected_errors)],
            "{error}",
            "Requests answered 500",
        )
        counter(
            "ratelimit.unknown_domains",
            [observed(lambda: counts.unknown_domains)],
            "{request}",
            "Requests of gateways for a domain without rules",
        )
        words = "What happened to quotas that are pushed into gateways, in buckets, reports and streams"
        counter("ratelimit.quota.events", [self._quota_events], "{event}", words)
        for name, read, words in (
            ("ratelimit.refused_sets", lambda: self._status().refused_sets, "Rule sets refused by this node"),
            ("ratelimit.refunds_dropped", lambda: self._status().refunds_dropped, "Refunds not delivered"),
            ("ratelimit.debts_dropped", lambda: self._status().debts_dropped, "Local decisions never charged"),
            ("ratelimit.demand_dropped", lambda: self._status().demand_dropped, "Demand that found no room"),
        ):
            counter(name, [observed(read)], "", words)
        counter(
            "ratelimit.lease.tokens",
            [self._leased],
            "{token}",
            "Tokens leased from buckets, by what became of them",
        )
        counter(
            "ratelimit.shadow.checks",
            [self._shadows],
            "{check}",
            "Checks that shadow rules would have decided, by rule and outcome",
        )
        gauge(
            "ratelimit.lease.tokens_out",
            [observed(lambda: self._status().leases.out)],
            "{token}",
            "Tokens leased from buckets and held here",
        )
        gauge("ratelimit.rules.version", [observed(lambda: self._status().rules_version)], "", "Rules in force")
        gauge("ratelimit.base.version", [observed(lambda: self._status().base_version)], "", "Bases known")
        gauge(
            "ratelimit.shard.breaker",
            [self._breakers],
            "",
            "Breaker of each enforcement point: 0 closed, 2 open",
        )

    def _checks(self, options: CallbackOptions) -> Iterator[Observation]:
        for (domain, rule, outcome), count in list(self.counts.checks.items()):
            yield Observation(count, {"domain": domain, "rule": rule, "outcome": outcome})

    def _degraded_checks(self, options: CallbackOptions) -> Iterator[Observation]:
        counts = self.counts
        yield Observation(counts.degraded_answers - counts.answers_at_floor, {"cause": "store"})
        yield Observation(counts.answers_at_floor, {"cause": "floor"})

    def _quota_events(self, options: CallbackOptions) -> Iterator[Observation]:
        for event, count in list(self.counts.quota_events.items()):
            yield Observation(count, {"event": event})

    def _degraded(self, options: CallbackOptions) -> Iterator[Observation]:
        for cause, count in list(self._status().degraded.items())[:SERIES_MOST]:
            yield Observation(count, {"cause": cause})

    def _leased(self, options: CallbackOptions) -> Iterator[Observation]:
        leases = self._status().leases
        for event, count in (("taken", leases.taken), ("returned", leases.returned), ("lost", leases.lost)):
            yield Observation(count, {"event": event})

    def _shadows(self, options: CallbackOptions) -> Iterator[Observation]:
        for name, count in list(self._status().shadows.items())[: SERIES_MOST // 3]:
            domain, _, rule = name.partition("/")
            outcomes = (("would_allow", count.would_allow), ("would_deny", count.would_deny))
            for outcome, number in (*outcomes, ("undecided", count.undecided)):
                yield Observation(number, {"domain": domain, "rule": rule, "outcome": outcome})

    def _breakers(self, options: CallbackOptions) -> Iterator[Observation]:
        for shard in list(self._status().shards)[:SERIES_MOST]:
            yield Observation(BREAKER_STATES.get(shard.breaker, 2), {"point": shard.point})


class _DurationCollector(Collector):
    """``http.server.request.duration``: the arrays of :class:`Counts` as a histogram.

    OpenTelemetry has no observable histogram, so this one is handed to the registry directly.
    """

    def __init__(self, region: str, counts: Counts) -> None:
        self._region = region
        self._counts = counts

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(
            "http_server_request_duration_seconds",
            "Duration of requests",
            labels=["http_request_method", "http_route", "http_response_status_code", "region"],
        )
        for (method, route, status), durations in list(self._counts.durations.items()):
            _add(family, [method, route, str(status), self._region], durations)
        yield family
        calls = HistogramMetricFamily(
            "rpc_server_duration_seconds",
            "Duration of gRPC calls",
            labels=["rpc_service", "rpc_method", "rpc_grpc_status_code", "region"],
        )
        for (path, code), durations in list(self._counts.calls.items()):
            _, service, method = path.split("/")
            _add(calls, [service, method, str(code), self._region], durations)
        yield calls


def _add(family: HistogramMetricFamily, labels: list[str], durations: Durations) -> None:
    total, buckets = 0, []
    for bound, count in zip((*DURATION_BOUNDS_S, "+Inf"), durations.counts, strict=True):
        total += count
        buckets.append((str(bound), total))
    family.add_metric(labels, buckets, durations.sum_s)
