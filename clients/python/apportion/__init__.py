"""A client of Apportion's check API: ask before you act, and say what happens when nobody answers.

    from apportion import Client

    limiter = Client("http://127.0.0.1:8101", on_no_answer="allow")
    answer = limiter.check("user:42", "POST /orders", attributes={"tier": "free"})
    if not answer.allowed:
        ...  # answer.retry_after_ms tells when it is worth asking again, None: never

Many at once: ``limiter.check_batch([Check("user:42", "GET /x"), Check("user:43", "GET /x")])``.  ``AsyncClient`` is
the same with ``await``.

Work that only so many may do at once holds a slot meanwhile, and renews its lease if it takes long:

    with limiter.acquire("user:42", "POST /renderings") as lease:
        if lease.allowed:
            ...  # lease.renew() before lease.answer.lease_ms are over; False: somebody else may have the slot

Errors:

ApportionError
+-- InvalidRequest    the caller erred: the request was refused, ``problem`` says which field (never retried)
+-- NoAnswer          no decision within the timeout (only with ``on_no_answer="raise"``)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from apportion._client import AsyncClient, Client
    from apportion._leases import AsyncLease, Lease
    from apportion._types import Answer, ApportionError, Check, InvalidRequest, NoAnswer, OnNoAnswer
    from apportion.token_leases import AsyncTokenLeases, TokenLeases

__all__ = [
    "Answer",
    "ApportionError",
    "AsyncClient",
    "AsyncLease",
    "AsyncTokenLeases",
    "Check",
    "Client",
    "InvalidRequest",
    "Lease",
    "NoAnswer",
    "OnNoAnswer",
    "TokenLeases",
]

_PLACES: Final = {
    **dict.fromkeys(("AsyncClient", "Client"), "_client"),
    **dict.fromkeys(("AsyncLease", "Lease"), "_leases"),
    **dict.fromkeys(("AsyncTokenLeases", "TokenLeases"), "token_leases"),
}


def __getattr__(name: str) -> Any:
    """What is asked for, imported when it is: who needs no HTTP client does not wait for its import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"apportion.{_PLACES.get(name, '_types')}"), name)
