"""Every region goes a version back and forward, one after another, under load: ``make test-upgrade``.

In between the versions are mixed for ten minutes (APPORTION_UPGRADE_MIXED_S), with leaders of either version.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import THIRD
from tests.e2e.system import REGIONS, ROOT, local_system
from tests.e2e.upgrading import Callers, code_of, restart, understood
from tests.upgrade.previous import unpack

MIXED_S = float(os.environ.get("APPORTION_UPGRADE_MIXED_S", "600"))


@pytest.mark.timeout(MIXED_S + 1200)
async def test_every_region_goes_a_version_back_and_forward(tmp_path: Path) -> None:
    previous = unpack(tmp_path / "previous")
    with local_system(tmp_path / "system", base_port=30400, scale=THIRD) as system:
        callers = Callers(system)
        led_by: set[Path] = set()

        async def go(region: str, tree: Path) -> None:
            await asyncio.to_thread(restart, system, region, tree)
            await asyncio.to_thread(system.settle)
            await asyncio.to_thread(understood, system)
            leader = system.leader_region()
            assert leader is not None
            led_by.update(await asyncio.to_thread(code_of, system, [leader]))

        async with callers.calling():
            for region in REGIONS:
                await go(region, previous)
            assert code_of(system) == {previous}
            await go(REGIONS[0], ROOT)
            assert code_of(system) == {previous, ROOT}
            await asyncio.sleep(MIXED_S)
            await asyncio.to_thread(understood, system)
            for region in REGIONS[1:]:
                await go(region, ROOT)
            assert code_of(system) == {ROOT}
        callers.assert_nobody_noticed()
        assert led_by == {previous, ROOT}
