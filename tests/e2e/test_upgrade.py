"""One region goes a version back, and forward again, under load; the others are of this version meanwhile.

All regions, and ten minutes of mixed versions: ``make test-upgrade``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.system import ROOT, LocalSystem
from tests.e2e.upgrading import Callers, code_of, libraries, restart, understood
from tests.upgrade.previous import unpack

MIXED_S = 3.0


@pytest.mark.timeout(400)
async def test_a_region_goes_a_version_back_and_forward_and_no_check_fails(
    fast_system: LocalSystem, tmp_path: Path
) -> None:
    previous = await asyncio.to_thread(unpack, tmp_path / "previous")
    await asyncio.to_thread(fast_system.settle)
    leader = fast_system.leader_region()
    assert leader is not None
    before = libraries(fast_system, leader)
    callers = Callers(fast_system)
    try:
        async with callers.calling():
            await asyncio.to_thread(restart, fast_system, leader, previous)
            assert code_of(fast_system, [leader]) == {previous}
            assert len(libraries(fast_system, leader) - before) == 1, "the previous library is not there"
            await asyncio.sleep(MIXED_S)
            await asyncio.to_thread(understood, fast_system)
            await asyncio.to_thread(restart, fast_system, leader, ROOT)
            await asyncio.sleep(1)
    finally:
        if code_of(fast_system, [leader]) != {ROOT}:
            restart(fast_system, leader, ROOT)
    callers.assert_nobody_noticed()
    understood(fast_system)
