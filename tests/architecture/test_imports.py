"""The direction of imports, and the purity of the pure rooms: a reader knows from the room what may be touched."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FORBIDDEN_BY_PACKAGE = {
    "regional_limiter": ("global_sync", "services", "infra"),
    "global_sync": ("services", "infra"),
    "services": (),
    "infra": (),
    "clients": ("regional_limiter", "global_sync", "services", "infra"),
}

PURE_ROOMS = (
    "regional_limiter/model",
    "regional_limiter/algorithms",
    "regional_limiter/rules",
    "regional_limiter/engine.py",
    "regional_limiter/fallback.py",
    "regional_limiter/plan.py",
    "regional_limiter/together.py",
    "regional_limiter/debts.py",
    "regional_limiter/denials.py",
    "regional_limiter/durations.py",
    "regional_limiter/node_counts.py",
    "regional_limiter/counted_answers.py",
    "regional_limiter/nodes_seen.py",
    "regional_limiter/quota.py",
    "regional_limiter/soft.py",
    "regional_limiter/usage.py",
    "regional_limiter/sub_buckets.py",
    "regional_limiter/subject_cache.py",
    "regional_limiter/token_lease_table.py",
    "regional_limiter/store/base.py",
    "regional_limiter/store/breaker.py",
    "regional_limiter/store/bucket_table.py",
    "regional_limiter/store/subjects.py",
    "regional_limiter/store/topology.py",
    "regional_limiter/store/library.py",
    "global_sync/protocol",
    "global_sync/allocation",
    "global_sync/policy.py",
    "global_sync/codec.py",
    "global_sync/key_usage.py",
    "global_sync/tracing.py",
    "global_sync/node_usage.py",
    "global_sync/changes.py",
    "global_sync/rule_states.py",
    "global_sync/rulebook.py",
    "global_sync/subject_records.py",
    "global_sync/transport/topics.py",
    "services/check_api/answers.py",
    "services/check_api/bodies.py",
    "services/check_api/home_wire.py",
    "services/check_api/counts.py",
    "services/check_api/headers.py",
    "services/check_api/authorize_heads.py",
    "services/check_api/heads.py",
    "services/check_api/rls_document.py",
    "services/check_api/replies.py",
    "services/rls/envoy_config.py",
    "services/rls/http2/blocks.py",
    "services/rls/http2/bounds.py",
    "services/rls/http2/frames.py",
    "services/rls/http2/heads.py",
    "services/rls/http2/hpack_reader.py",
    "services/rls/http2/huffman.py",
    "services/rls/messages.py",
    "services/rls/naming.py",
    "services/rls/wire.py",
    "services/rls/protojson.py",
    "services/quota/desk.py",
    "services/quota/division.py",
    "services/quota/ledger.py",
    "services/quota/messages.py",
    "services/bases_seen.py",
    "services/granted.py",
    "services/hiding.py",
    "services/otlp_wire.py",
    "services/picture.py",
    "services/health.py",
    "services/yaml_text.py",
    *(
        f"services/dashboard/past/{name}.py"
        for name in (
            "asked",
            "bases_over_time",
            "cells",
            "convergence",
            "growth",
            "holding",
            "incidents",
            "key_watch",
            "share_steps",
        )
    ),
    "services/dashboard/rates.py",
    "services/dashboard/rules.py",
    "services/dashboard/nearness.py",
    "services/dashboard/told.py",
    "services/control_api/access.py",
    "services/control_api/documented.py",
    "services/control_api/examples.py",
    "services/control_api/subject_lines.py",
    "services/control_api/totals.py",
    "infra/region/slot_moves.py",
    "infra/region/units.py",
    "infra/hub/units.py",
    "infra/capacity.py",
    "infra/monitoring/alerts.py",
    "infra/monitoring/panels.py",
    "services/check_api/authorize.py",
    "services/check_api/lending.py",
    "regional_limiter/key_windows.py",
    "regional_limiter/lending.py",
    "clients/python/apportion/_token_lease_table.py",
    "clients/python/apportion/addresses.py",
    "clients/python/apportion/texts.py",
    "clients/python/apportion/web.py",
    "infra/local/hints.py",
    "services/simulator/log_counts.py",
    "services/simulator/measure.py",
    "services/simulator/page.py",
    "services/simulator/report.py",
    "services/rule_cases",
    "services/importing",
    "services/share_history.py",
    "regional_limiter/foretold.py",
    "services/rehearsal/formats",
    "services/rehearsal/attributes.py",
    "services/rehearsal/order.py",
    "services/rehearsal/replay.py",
    "services/rehearsal/tally.py",
    "services/rehearsal/rehearsal.py",
    "services/rehearsal/report.py",
    "services/rehearsal/suspects.py",
    "services/rehearsal/page.py",
)
SIMULATED_ROOMS = (
    "global_sync/simulation",
    "services/simulator/baselines.py",
    "services/simulator/beside.py",
    "services/simulator/bounds.py",
    "services/simulator/faults.py",
    "services/simulator/log_report.py",
    "services/simulator/one_point.py",
    "services/simulator/over_log.py",
    "services/simulator/placing.py",
    "services/simulator/run.py",
    "services/simulator/traces.py",
)
"""No I/O and no real clock either: chance comes from a seed, and the event loop is the room's own."""

IMPURE_MODULES = {
    "time", "random", "asyncio", "redis", "aiokafka", "socket", "os", "subprocess", "threading",
    "secrets", "fastapi", "httpx", "uvicorn", "structlog", "tenacity",
}  # fmt: skip


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def _files(room: str) -> list[Path]:
    path = ROOT / room
    return [path] if path.suffix else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("package", FORBIDDEN_BY_PACKAGE)
def test_imports_point_from_services_to_global_sync_to_regional_limiter(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _files(package)
        for name in _imports(path)
        if name.split(".")[0] in FORBIDDEN_BY_PACKAGE[package]
    ]
    assert wrong == []


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_touch_no_clock_no_network_no_environment(room: str) -> None:
    files = _files(room)
    assert files, f"{room} is gone: mend this list"
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in _imports(path)
        if name.split(".")[0] in IMPURE_MODULES
    ]
    assert wrong == []


def _says_pure(path: Path) -> bool:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return "  Pure" in docstring.partition("\n\n")[0] or "[P]" in docstring


def test_whoever_calls_itself_pure_is_held_to_it() -> None:
    held = {path for room in (*PURE_ROOMS, *SIMULATED_ROOMS) for path in _files(room)}
    said = {path for package in FORBIDDEN_BY_PACKAGE for path in _files(package) if _says_pure(path)}
    assert ROOT / "regional_limiter/engine.py" in said
    assert sorted(str(path.relative_to(ROOT)) for path in said - held) == []


@pytest.mark.parametrize("room", SIMULATED_ROOMS)
def test_simulated_rooms_touch_no_clock_no_network_no_environment(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _files(room)
        for name in _imports(path)
        if name.split(".")[0] in IMPURE_MODULES - {"random", "asyncio"}
    ]
    assert wrong == []


def test_the_test_would_see_a_wrong_import(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import time\nfrom global_sync.protocol import messages\n")
    assert list(_imports(path)) == ["time", "global_sync.protocol"]
