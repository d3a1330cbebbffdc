"""A bar on stderr while a long command works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reading(total_bytes: int | None, words: str) -> Iterator[Callable[[int], None]]:
    """Told of every byte that is taken, if stderr is a screen.  None: nobody knows how many there are."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(words, total=total_bytes)
        yield lambda count: shown.advance(task, count)
