from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from global_sync.transport.memory import MemoryHub
from services.control_api.app import create_app
from services.settings import (
    ControlApiSettings,
    ControlLimits,
    DashboardSettings,
    HubRegion,
    HubSettings,
    KafkaSettings,
)
from tests.unit.control_api.fake_leader import FakeLeader, leading

Serving = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


def hub_settings(
    token: str | None = None,
    state_dir: Path = Path("/nowhere"),
    trusted_proxies: Sequence[str] = (),
    **limits: int,
) -> HubSettings:
    return HubSettings(
        kafka=KafkaSettings(bootstrap="127.0.0.1:1"),
        control_api=ControlApiSettings(
            port=25090,
            state_dir=state_dir,
            token=SecretStr(token) if token else None,
            limits=ControlLimits(**limits),
            trusted_proxies=list(trusted_proxies),
        ),
        dashboard=DashboardSettings(port=25091),
        regions={"us-east": HubRegion(), "eu-west": HubRegion()},
    )


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub()


@pytest.fixture
async def leader(hub: MemoryHub) -> AsyncIterator[FakeLeader]:
    async with leading(hub) as one:
        yield one


@pytest.fixture
def serving(hub: MemoryHub) -> Serving:
    """Runs a control API over the memory transport; ``wait_s`` is how long it waits for outcomes."""

    @asynccontextmanager
    async def run(
        *,
        token: str | None = None,
        wait_s: float = 3.0,
        state_dir: Path = Path("/nowhere"),
        trusted_proxies: Sequence[str] = (),
        **limits: int,
    ) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(hub.transport("control"), hub_settings(token, state_dir, trusted_proxies, **limits))
        app.state.hub.proposer._wait_s = wait_s
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:25090") as client,
        ):
            yield client

    return run
