"""What a reply of Redis proves: that nothing ran, or nothing at all."""

from __future__ import annotations

import pytest

from regional_limiter.model.errors import OtherWindows, StoreUnavailable
from regional_limiter.store.cluster import Cluster, ClusterOptions
from regional_limiter.store.connection import ReplyError


class Answering(Cluster):
    """A cluster whose one server gives ``replies``, in order."""

    def __init__(self, *replies: object) -> None:
        super().__init__(["10.0.0.1:1"], ClusterOptions())
        self._known.set()
        self.replies = list(replies)
        self.loads = 0

    async def _send(self, *arguments: object) -> object:
        return self.replies.pop(0)

    async def ask(self) -> object:
        async def load(address: str, timeout_s: float) -> None:
            self.loads += 1

        return await self.call(b"", address="10.0.0.1:1", attempt_s=1, whole_s=1, load=load)


async def test_a_missing_function_is_loaded_and_called_again() -> None:
    cluster = Answering(ReplyError("ERR Function not found"), [1])
    assert await cluster.ask() == [1]
    assert cluster.loads == 1


async def test_windows_of_another_time_prove_that_nothing_ran_and_tell_the_time() -> None:
    cluster = Answering(ReplyError("OTHERWINDOWS 1700000000123 script: apportion_check_x, on user_function:1."))
    with pytest.raises(OtherWindows) as caught:
        await cluster.ask()
    assert (caught.value.time_ms, caught.value.may_have_run) == (1_700_000_000_123, False)


async def test_an_error_that_quotes_a_missing_function_does_not_prove_that_nothing_ran() -> None:
    cluster = Answering(ReplyError("ERR a limit that cannot be read: Function not found"), [1])
    with pytest.raises(StoreUnavailable) as caught:
        await cluster.ask()
    assert caught.value.may_have_run
    assert (cluster.loads, cluster.replies) == (0, [[1]])
