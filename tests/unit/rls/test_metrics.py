"""What gRPC calls look like in the node's metrics."""

from __future__ import annotations

from regional_limiter.in_process import in_memory
from services.check_api.app import NodeOptions, create_app
from services.check_api.metrics import Metrics
from services.check_api.rls_observer import RlsObserver
from services.rls.messages import METHOD
from services.rls.methods import Unary, methods_of
from tests.unit.rls.test_service import MINUTE_LIMITS


async def test_calls_are_counted_by_status_and_domains_without_rules_apart() -> None:
    async with in_memory(MINUTE_LIMITS) as limiter:
        app = create_app(limiter, NodeOptions("us-east", "n1"))
        method = methods_of(app.rls, lambda: True, RlsObserver(app))[METHOD]
        assert isinstance(method, Unary)
        told: list[object] = []
        entry = b"\x12\x08\x0a\x06\x0a\x01a\x12\x01b"
        for message in (b"\x0a\x04gone" + entry, b"\x0a\x04edge" + entry, b"\xff"):
            method.call(message, told.append)
        metrics = Metrics("us-east", app.counts, limiter.status)
        text = metrics.exposition.text().decode()
        metrics.close()
    assert len(told) == 3
    counted = [line for line in text.splitlines() if line.startswith("rpc_server_duration_seconds_count")]
    assert all('rpc_method="ShouldRateLimit"' in line for line in counted)
    by_code = {line.partition('rpc_grpc_status_code="')[2][0]: line.rpartition(" ")[2] for line in counted}
    assert by_code == {"0": "2.0", "3": "1.0"}
    (unknown,) = [line for line in text.splitlines() if line.startswith("ratelimit_unknown_domains")]
    assert unknown.endswith(" 1.0")
