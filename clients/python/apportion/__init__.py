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

from apportion._client import AsyncClient, Client
from apportion._leases import AsyncLease, Lease
from apportion._types import Answer, ApportionError, Check, InvalidRequest, NoAnswer, OnNoAnswer

__all__ = [
    "Answer",
    "ApportionError",
    "AsyncClient",
    "AsyncLease",
    "Check",
    "Client",
    "InvalidRequest",
    "Lease",
    "NoAnswer",
    "OnNoAnswer",
]
