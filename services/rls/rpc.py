"""The words of gRPC that both servers share: status codes, and a call that failed."""

from __future__ import annotations

from typing import Final

CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16


class Failed(Exception):
    """A call that ends with ``code`` instead of a message; ``words`` say why, in one line."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
