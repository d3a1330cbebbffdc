"""What Prometheus and a collector read of a node: OpenTelemetry instruments that look at :mod:`counts`.

Nothing here is on the way of a check, and nothing here is imported before it is needed.  What is read in a thread
was noted by ``look`` on the event loop, in a fraction of a millisecond also where the tables are full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from regional_limiter.durations import Seen
from regional_limiter.limiter import LimiterStatus
from regional_limiter.shadow import ShadowCount
from services.check_api.counts import Counts, Series, StoreCalls
from services.telemetry import Exposition, Labels, bounded_series, observed

BREAKER_STATES: Final = {"closed": 0, "open": 2}


class Metrics:
    """Exports ``counts``, what ``status`` tells, and the store's ``calls``.

    ``region`` is a label of every series.  ``own_tables``: of the node, as ``LimiterStatus.tables``.
    """

    def __init__(
        self,
        region: str,
        counts: Counts,
        status: Callable[[], LimiterStatus],
        *,
        node: str | None = None,
        calls: StoreCalls | None = None,
        own_tables: Callable[[], Mapping[str, tuple[int, int]]] = dict,
    ) -> None:
        self.counts = counts
        self._status = status
        self._calls = calls or StoreCalls()
        self._own_tables = own_tables
        self._seen = status()
        self._checks_seen: Sequence[tuple[Series, int]] = ()
        self._shadows_seen: Sequence[tuple[str, ShadowCount]] = ()
        self._tables_seen: Mapping[str, tuple[int, int]] = {}
        self._served: Sequence[tuple[Labels, Seen]] = ()
        self._called: Sequence[tuple[Labels, Seen]] = ()
        self._asked: Sequence[tuple[Labels, Seen]] = ()
        self.exposition = Exposition("check-api", region, instance=node, look=self.look)
        self._register()

    def look(self) -> None:
        """Note how everything stands.  On the event loop."""
        counts = self.counts
        self._seen = self._status()
        self._checks_seen = list(counts.checks.items())
        self._shadows_seen = list(self._seen.shadows.items())
        self._tables_seen = {**self._seen.tables, **self._own_tables()}
        self._served = [
            (
                {"http.request.method": method, "http.route": route, "http.response.status_code": status},
                durations.seen(),
            )
            for (method, route, status), durations in counts.durations.items()
        ]
        self._called = [(_rpc_labels(*call), durations.seen()) for call, durations in counts.calls.items()]
        self._asked = [(_server_labels(address), took.seen()) for address, took in self._calls.took.items()]

    def close(self) -> None:
        self.exposition.close()

    def _register(self) -> None:
        exposition = self.exposition
        exposition.histogram("http.server.request.duration", "Duration of requests", lambda: self._served)
        exposition.histogram("rpc.server.duration", "Duration of gRPC calls", lambda: self._called)
        words = "Until Redis has answered the call of a check, by server"
        exposition.histogram("db.client.operation.duration", words, lambda: self._asked)
        self._register_checks()
        self._register_losses()
        self._register_state()

    def _register_checks(self) -> None:
        counter, counts = self.exposition.meter.create_observable_counter, self.counts
        counter("ratelimit.checks", [self._checks], "{check}", "Checks answered, by named rule, outcome and why")
        counter(
            "ratelimit.degraded_checks",
            [self._degraded_checks],
            "{check}",
            "Checks answered without the region's Redis (cause store), or at the floor (cause floor)",
        )
        words = "Degraded decisions, by cause: floor is a cut link, shed too much load, home_* a home, else Redis"
        counter("ratelimit.degraded", [self._degraded], "{decision}", words)
        counter(
            "ratelimit.repeated_checks",
            [observed(lambda: counts.repeated)],
            "{check}",
            "Answers given again to a request with an id: charged, and counted as a check, the first time",
        )
        counter(
            "ratelimit.shadow.checks",
            [self._shadows],
            "{check}",
            "Checks that shadow rules would have decided, by rule and outcome",
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

    def _register_losses(self) -> None:
        counter = self.exposition.meter.create_observable_counter
        for name, read, unit, words in (
            ("ratelimit.refused_sets", lambda: self._seen.refused_sets, "{set}", "Rule sets refused by this node"),
            ("ratelimit.refunds_dropped", lambda: self._seen.refunds_dropped, "{refund}", "Refunds not delivered"),
            (
                "ratelimit.debts_dropped",
                lambda: self._seen.debts_dropped,
                "{decision}",
                "Local decisions never charged",
            ),
            ("ratelimit.demand_dropped", lambda: self._seen.demand_dropped, "{cost}", "Demand that found no room"),
        ):
            counter(name, [observed(read)], unit, words)
        words = "Calls of checks that Redis did not answer, by server"
        counter("ratelimit.shard.unanswered", [self._unanswered], "{call}", words)

    def _register_state(self) -> None:
        meter = self.exposition.meter
        counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
        words = "Tokens leased from buckets, by what became of them"
        counter("ratelimit.lease.tokens", [self._leased], "{token}", words)
        words = "How checks came to know what is stored of their clients"
        counter("ratelimit.subject.lookups", [self._subject_lookups], "{check}", words)
        words = "Tokens leased from buckets and held here"
        gauge("ratelimit.lease.tokens_out", [observed(lambda: self._seen.leases.out)], "{token}", words)
        gauge("ratelimit.rules.version", [observed(lambda: self._seen.rules_version)], "", "Rules in force")
        gauge("ratelimit.base.version", [observed(lambda: self._seen.base_version)], "", "Bases known")
        words = "Breaker of each enforcement point: 0 closed, 2 open"
        gauge("ratelimit.shard.breaker", [self._breakers], "", words)
        words = "1 where an enforcement point answered this node's last touch"
        gauge("ratelimit.shard.answers", [self._answers], "", words)
        gauge("ratelimit.table.entries", [self._tables(0)], "{entry}", "Entries of each of the node's tables")
        words = "How many entries each of the node's tables may have"
        gauge("ratelimit.table.entries_most", [self._tables(1)], "{entry}", words)

    def _checks(self, options: CallbackOptions) -> Iterator[Observation]:
        return bounded_series(
            ({"domain": domain, "rule": rule, "outcome": outcome, "reason": reason}, count)
            for (domain, rule, outcome, reason), count in self._checks_seen
        )

    def _degraded_checks(self, options: CallbackOptions) -> Iterator[Observation]:
        counts = self.counts
        yield Observation(counts.degraded_answers - counts.answers_at_floor, {"cause": "store"})
        yield Observation(counts.answers_at_floor, {"cause": "floor"})

    def _quota_events(self, options: CallbackOptions) -> Iterator[Observation]:
        return bounded_series(({"event": event}, count) for event, count in list(self.counts.quota_events.items()))

    def _degraded(self, options: CallbackOptions) -> Iterator[Observation]:
        return bounded_series(({"cause": cause}, count) for cause, count in self._seen.degraded.items())

    def _leased(self, options: CallbackOptions) -> Iterator[Observation]:
        leases = self._seen.leases
        for event, count in (("taken", leases.taken), ("returned", leases.returned), ("lost", leases.lost)):
            yield Observation(count, {"event": event})

    def _subject_lookups(self, options: CallbackOptions) -> Iterator[Observation]:
        counts = self._seen.subjects
        for outcome, count in (("kept", counts.kept), ("looked_up", counts.looked_up)):
            yield Observation(count, {"outcome": outcome})
        yield Observation(counts.unanswered - counts.stale, {"outcome": "unanswered"})
        yield Observation(counts.stale, {"outcome": "stale"})

    def _shadows(self, options: CallbackOptions) -> Iterator[Observation]:
        def rows() -> Iterator[tuple[Labels, float]]:
            for name, count in self._shadows_seen:
                domain, _, rule = name.partition("/")
                outcomes = (("would_allow", count.would_allow), ("would_deny", count.would_deny))
                for outcome, number in (*outcomes, ("undecided", count.undecided)):
                    yield {"domain": domain, "rule": rule, "outcome": outcome}, number

        return bounded_series(rows())

    def _breakers(self, options: CallbackOptions) -> Iterator[Observation]:
        shards = self._seen.shards
        return bounded_series(({"point": shard.point}, BREAKER_STATES.get(shard.breaker, 2)) for shard in shards)

    def _answers(self, options: CallbackOptions) -> Iterator[Observation]:
        return bounded_series(({"point": shard.point}, int(shard.answers)) for shard in self._seen.shards)

    def _unanswered(self, options: CallbackOptions) -> Iterator[Observation]:
        known = list(self._calls.unanswered.items())
        return bounded_series((_server_labels(address), count) for address, count in known)

    def _tables(self, place: int) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for table, filled in self._tables_seen.items():
                yield Observation(filled[place], {"table": table})

        return observe


def _rpc_labels(path: str, code: int) -> Labels:
    _, service, method = path.split("/")
    return {"rpc.service": service, "rpc.method": method, "rpc.grpc.status_code": code}


def _server_labels(address: str) -> Labels:
    host, _, port = address.rpartition(":")
    return {
        "db.system.name": "redis",
        "db.operation.name": "FCALL",
        "server.address": host.strip("[]"),
        "server.port": int(port),
    }
