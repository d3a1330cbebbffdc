"""Tasks that live as long as their process: ended in order, and never in silence."""

from __future__ import annotations

import asyncio

import structlog

log = structlog.get_logger(__name__)


def watched(work: asyncio.Task[None]) -> asyncio.Task[None]:
    """``work`` again; should it end by an error, that is logged."""
    work.add_done_callback(_log_unexpected_end)
    return work


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task of ours and wait for its end, however it comes."""
    task.cancel()
    await asyncio.wait({task})


def _log_unexpected_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task has ended", task=task.get_name(), exc_info=error)
