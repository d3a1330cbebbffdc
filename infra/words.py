"""Words to a person, on stderr.  Writing never fails: who reads may go away (a closed terminal, ``| head``)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from rich.console import Console
from rich.text import Text


class OutputLost(Exception):
    """Nobody reads what we say any more."""


class _Stderr(Console):
    def on_broken_pipe(self) -> None:
        """Rich's own would end the process, and close stdout."""
        raise BrokenPipeError


class Words:
    """Lines on stderr, in colour where that is wanted.  ``lost``: a line could not be written."""

    def __init__(self) -> None:
        self.lost = False
        self._console = _Stderr(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str = "", *, before: str = "", style: str = "") -> None:
        """One line: ``before`` in ``style``, then ``text`` as it is.  May be called from any thread."""
        try:
            self._console.print(Text.assemble((before, style), text))
        except (OSError, ValueError):  # ValueError: the stream has been closed
            self.lost = True
            self._console.quiet = True  # also drops what rich has kept of this line
            _discard_stderr()


words = Words()
"""This process's."""


def _discard_stderr() -> None:
    """What Python still holds for stderr must not fail again when the process ends: that is exit code 120."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


class Steps:
    """Tells each step with the seconds since the start.

    ``must_be_heard``: raises OutputLost once nobody reads: what is being started has lost who wanted it.
    """

    def __init__(self, words: Words, *, must_be_heard: bool = False) -> None:
        self._words = words
        self._must_be_heard = must_be_heard
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, message: str) -> None:
        with self._lock:
            self._words.say(f"  {message}", before=f"{time.monotonic() - self._began:6.1f} s", style="dim")
        self.check_heard()

    def check_heard(self) -> None:
        """Raises OutputLost when nobody reads any more and somebody must."""
        if self._must_be_heard and self._words.lost:
            raise OutputLost
