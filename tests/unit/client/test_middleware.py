"""Middleware in front of real frameworks, asking a real node with a real limiter in memory."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Annotated, Any

import anyio.from_thread
import django
import flask
import httpx
import pytest
from apportion import Answer, AsyncClient, Check, Client, InvalidRequest
from apportion.asgi import LimitMiddleware
from apportion.fastapi import install, limit
from apportion.web import refusal
from apportion.wsgi import LimitMiddleware as WsgiLimitMiddleware
from django.conf import settings as django_settings
from fastapi import Depends, FastAPI, Query, Request

from regional_limiter.in_process import in_memory
from services.check_api.app import NodeOptions, create_app

NODE = "http://node"
RULES = """
rules:
  - {id: few, match: {resource: "GET /few*"}, key: [client_key], algorithm: fixed_window, limit: 2, window: 1d}
  - {id: even, match: {resource: "GET /even"}, algorithm: leaky_bucket, capacity: 20, leak: 1/s, queue: true}
  - {id: orders, match: {resource: orders}, key: [client_key, tier], algorithm: fixed_window, limit: 5, window: 1d}
"""


@asynccontextmanager
async def node(rules: str = RULES) -> AsyncIterator[httpx.ASGITransport]:
    async with in_memory(rules) as limiter:
        yield httpx.ASGITransport(app=create_app(limiter, NodeOptions("local", "local-1")))


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[AsyncClient]:
    async with node() as transport, AsyncClient(NODE, transport=transport, timeout_s=10, **options) as client:
        yield client


def gone(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def of(app: Any, host: str = "192.0.2.7") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(host, 1)), base_url="http://app")


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": b"hello"})


# ---- ASGI


async def test_asgi_exactly_the_limit_passes_and_says_what_is_left() -> None:
    async with asking() as limiter, of(LimitMiddleware(plain, limiter=limiter)) as caller:
        responses = [await caller.get("/few/1") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    passed, denied = responses[0], responses[2]
    assert (passed.text, passed.headers["x-own"]) == ("hello", "1")
    assert passed.headers["ratelimit"].startswith('"few";r=1;t=')
    assert passed.headers["x-ratelimit-remaining"] == "1"
    assert denied.headers["ratelimit"].startswith('"few";r=0;t=')
    assert int(denied.headers["retry-after"]) >= 1
    assert denied.headers["content-type"] == "application/problem+json"
    problem = denied.json()
    assert problem["type"].endswith("#quota-exceeded")
    assert (problem["status"], problem["violated-policies"], problem["reason"]) == (429, ["few"], "limited")


async def test_asgi_a_stranger_is_who_the_connection_says() -> None:
    async with asking() as limiter, of(LimitMiddleware(plain, limiter=limiter)) as caller:
        statuses = [
            (await caller.get("/few", headers={"X-Forwarded-For": f"192.0.2.{i}"})).status_code for i in range(3)
        ]
    assert statuses == [200, 200, 429]


async def test_asgi_behind_a_trusted_proxy_callers_are_told_apart() -> None:
    async with asking() as limiter:
        app = LimitMiddleware(plain, limiter=limiter, trusted_proxies=["192.0.2.0/24"])
        async with of(app) as caller:
            statuses = [
                (await caller.get("/few", headers={"X-Forwarded-For": f"203.0.113.{i}"})).status_code
                for i in range(3)
            ]
    assert statuses == [200] * 3


@pytest.mark.parametrize(("choice", "status"), [("allow", 200), ("deny", 503)])
async def test_asgi_without_an_answer_the_clients_choice_counts(choice: Any, status: int) -> None:
    transport = httpx.MockTransport(gone)
    async with (
        AsyncClient(NODE, transport=transport, on_no_answer=choice) as limiter,
        of(LimitMiddleware(plain, limiter=limiter)) as caller,
    ):
        response = await caller.get("/few")
    assert response.status_code == status
    assert ("retry-after" in response.headers) is (status == 503)


async def test_asgi_what_nobody_wants_limited_is_not_asked_for() -> None:
    def identify(scope: Any) -> Check | None:
        return None if scope["path"] == "/health" else Check("one", "GET /few")

    async with asking() as limiter, of(LimitMiddleware(plain, limiter=limiter, identify=identify)) as caller:
        assert [(await caller.get("/health")).status_code for _ in range(4)] == [200] * 4
        assert [(await caller.get("/x")).status_code for _ in range(3)] == [200, 200, 429]


async def test_asgi_a_path_of_any_length_is_limited() -> None:
    async with asking() as limiter, of(LimitMiddleware(plain, limiter=limiter)) as caller:
        statuses = [(await caller.get("/few" + "x" * 3000)).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def costing(query: str) -> Check:
    """What an ``identify`` makes of a request whose cost is the caller's word, unchecked."""
    rows: Any = dict(urllib.parse.parse_qsl(query)).get("rows")
    known = rows is None or rows == "abc"
    cost = rows if known else float(rows) if rows in ("nan", "inf") else int(rows)
    return Check("k" * 3000, "GET /few" + "x" * 3000, cost)


NO_COSTS = ["", "rows=abc", "rows=-5", "rows=99999999999", f"rows={10**30}", "rows=nan", "rows=inf"]


def names_the_cost(status: int, headers: Any, body: bytes) -> bool:
    problem = json.loads(body)
    fields = [fault["field"] for fault in problem["errors"]]
    kind = headers["content-type"]
    return (status, kind, fields) == (422, "application/problem+json", ["cost"]) and "from 0" in problem["detail"]


@pytest.mark.parametrize("batching", [False, True])
async def test_asgi_what_a_stranger_sends_is_no_fault_of_the_application(batching: bool) -> None:
    def identify(scope: Any) -> Check:
        return costing(scope["query_string"].decode())

    async with (
        asking(batching=batching) as limiter,
        of(LimitMiddleware(plain, limiter=limiter, identify=identify)) as caller,
    ):
        refused = [await caller.get(f"/?{query}") for query in NO_COSTS]
        passed = [(await caller.get("/?rows=1")).status_code for _ in range(3)]
    assert all(names_the_cost(said.status_code, said.headers, said.content) for said in refused)
    assert passed == [200, 200, 429]


async def test_a_check_that_cannot_be_sent_spoils_no_other_of_its_batch() -> None:
    checks = [Check("k", "GET /x", attributes={f"a{n}": "x" * 1000 for n in range(3000)}), Check("k", "GET /x", 1)]
    checks += [replace(checks[1], cost=cost) for cost in (float("nan"), float("inf"))]  # type: ignore[arg-type]
    async with asking(batching=True) as limiter:
        said = await asyncio.gather(*map(limiter.ask, checks), return_exceptions=True)
    assert [isinstance(one, Answer) for one in said] == [False, True, False, False]
    assert all(isinstance(one, InvalidRequest) for one in (said[0], *said[2:]))


@pytest.mark.parametrize("batching", [False, True])
async def test_asgi_values_that_are_too_much_together_are_no_fault_of_the_application(batching: bool) -> None:
    def identify(scope: Any) -> Check:
        return Check("k", "GET /few", attributes={f"a{n}": "x" * 5000 for n in range(70)})

    async with (
        asking(batching=batching) as limiter,
        of(LimitMiddleware(plain, limiter=limiter, identify=identify)) as caller,
    ):
        refused = await caller.get("/")
    assert refused.status_code == 422
    fields = {fault["field"] for fault in refused.json()["errors"]}
    assert fields
    assert fields <= {"body", "attributes"}
    with pytest.raises(InvalidRequest):
        refusal(InvalidRequest(400, {"errors": [{"field": "body", "problem": "is not ours"}]}))


async def test_asgi_what_is_set_wrongly_is_told_to_nobody_who_asks() -> None:
    async with asking(domain="No Such") as limiter, of(LimitMiddleware(plain, limiter=limiter)) as caller:
        with pytest.raises(InvalidRequest, match="domain"):
            await caller.get("/few")
    problem = {"detail": "no such token", "errors": [{"field": "cost", "problem": "is hidden"}]}
    transport = httpx.MockTransport(lambda request: httpx.Response(401, json=problem))
    async with (
        AsyncClient(NODE, transport=transport) as limiter,
        of(LimitMiddleware(plain, limiter=limiter)) as caller,
    ):
        with pytest.raises(InvalidRequest, match="token"):
            await caller.get("/few")


async def test_asgi_a_queue_holds_requests_back_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with asking() as limiter, of(LimitMiddleware(plain, limiter=limiter)) as caller:
        monkeypatch.setattr("apportion.asgi.asyncio.sleep", sleep)
        for _ in range(3):
            assert (await caller.get("/even")).status_code == 200
    assert slept
    assert all(0 < seconds <= 2 for seconds in slept)


async def test_asgi_other_scopes_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async with asking() as limiter:
        middleware = LimitMiddleware(app, limiter=limiter)
        for kind in ("lifespan", "websocket"):
            await middleware({"type": kind}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]


# ---- FastAPI


def orders(limiter: AsyncClient) -> FastAPI:
    app = FastAPI()
    install(app, limiter)
    asked = limit("orders", cost=2, key=lambda request: request.headers.get("x-user", ""))
    dear = limit(
        "orders",
        cost=lambda request: int(request.query_params["items"]),
        attributes=lambda request: {"tier": "x" * 5000},
    )

    @app.post("/orders", dependencies=[Depends(asked)])
    async def order() -> dict[str, str]:
        return {"order": "1"}

    @app.get("/dear", dependencies=[Depends(dear)])
    async def dearer() -> dict[str, str]:
        return {}

    @app.get("/few/{item}", dependencies=[Depends(limit())])
    async def few(item: int) -> dict[str, int]:
        return {"item": item}

    return app


async def test_fastapi_a_route_has_its_own_limit_and_cost() -> None:
    async with asking() as limiter, of(orders(limiter)) as caller:
        responses = [await caller.post("/orders", headers={"X-User": "a"}) for _ in range(3)]
        other = await caller.post("/orders", headers={"X-User": "b"})
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert other.status_code == 200
    assert responses[0].headers["ratelimit"].startswith('"orders";r=3;t=')
    assert responses[2].json()["violated-policies"] == ["orders"]
    assert int(responses[2].headers["retry-after"]) >= 1


async def test_fastapi_the_cost_may_be_read_off_the_request() -> None:
    async with asking() as limiter, of(orders(limiter)) as caller:
        statuses = [(await caller.get("/dear", params={"items": items})).status_code for items in (3, 3, 2, 1)]
    assert statuses == [200, 429, 200, 429]


def rows(rows: Annotated[int, Query(ge=1, le=5)]) -> int:
    return rows


def exports(limiter: AsyncClient) -> FastAPI:
    app = FastAPI()
    install(app, limiter)
    undeclared = limit("orders", cost=lambda request: int(request.query_params["rows"]), key=lambda request: "one")

    def user(x_user: Annotated[str, Query()] = "nobody") -> str:
        return x_user

    @app.get("/exports", dependencies=[Depends(limit("orders", cost=rows, key=user))])
    async def export(rows: Annotated[int, Depends(rows)]) -> int:
        return rows

    @app.get("/undeclared", dependencies=[Depends(undeclared)])
    async def other() -> None:
        return None

    return app


async def test_fastapi_a_cost_is_declared_and_what_is_not_so_charges_nothing() -> None:
    async with asking() as limiter, of(exports(limiter)) as caller:
        refused = [await caller.get(f"/exports?{query}") for query in [*NO_COSTS, "rows=0", "rows=6"]]
        passed = await caller.get("/exports?rows=5")
        denied = await caller.get("/exports?rows=1")
        other = await caller.get("/exports?rows=1&x_user=b")
    assert {said.status_code for said in refused} == {422}
    assert all(said.json()["detail"][0]["loc"] == ["query", "rows"] for said in refused)
    assert (passed.status_code, passed.json(), denied.status_code, other.status_code) == (200, 5, 429, 200)


async def test_fastapi_a_cost_that_no_check_can_have_is_no_fault_of_the_application() -> None:
    async with asking() as limiter, of(exports(limiter)) as caller:
        refused = [await caller.get(f"/undeclared?rows={cost}") for cost in (-5, 99999999999)]
        passed = await caller.get("/undeclared?rows=5")
    assert all(names_the_cost(said.status_code, said.headers, said.content) for said in refused)
    assert passed.status_code == 200


async def awaited(request: Any) -> str:
    return str(request.headers["x-user"])


def prefixed(request, prefix="x"):  # type: ignore[no-untyped-def]
    return prefix + request.headers["x-user"]


def joined(request, team: Annotated[str, Query(min_length=2)], more="y"):  # type: ignore[no-untyped-def]
    return team + more + request.headers["x-user"]


async def unannotated(request):  # type: ignore[no-untyped-def]
    return request.headers["x-user"]


@pytest.mark.parametrize("key", [prefixed, joined, unannotated, lambda request: awaited(request)])
async def test_fastapi_a_first_parameter_that_says_nothing_of_itself_is_the_request(key: Any) -> None:
    app = FastAPI()
    async with asking() as limiter, of(app) as caller:
        install(app, limiter)

        @app.get("/", dependencies=[Depends(limit("GET /few", key=key))])
        async def root() -> None:
            return None

        asked = {"team": "ab", "prefix": "of the caller's choice"}
        a = [(await caller.get("/", headers={"x-user": "a"}, params=asked)).status_code for _ in range(3)]
        chosen = {**asked, "prefix": "another", "more": "another"}
        b = [(await caller.get("/", headers={"x-user": name}, params=chosen)).status_code for name in "ab"]
        none = (await caller.get("/", headers={"x-user": "c"})).status_code
    assert (a, b) == ([200, 200, 429], [429, 200])
    assert none == (422 if key is joined else 200)


async def test_fastapi_the_route_is_what_is_limited_not_each_of_its_paths() -> None:
    async with asking() as limiter, of(orders(limiter)) as caller:
        statuses = [(await caller.get(f"/few/{item}")).status_code for item in range(3)]
    assert statuses == [200, 200, 429]


async def test_fastapi_without_install_the_first_request_says_what_is_missing() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("orders"))])
    async def root(request: Request) -> None:
        return None

    async with of(app) as caller:
        with pytest.raises(RuntimeError, match="install"):
            await caller.get("/")


# ---- WSGI, Flask and Django: their client blocks, so the node runs on a loop of another thread


class Through(httpx.BaseTransport):
    def __init__(self, portal: anyio.from_thread.BlockingPortal, transport: httpx.ASGITransport) -> None:
        self._portal = portal
        self._transport = transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def ask() -> httpx.Response:
            response = await self._transport.handle_async_request(request)
            return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())

        return self._portal.call(ask)


@contextmanager
def blocking_transport(rules: str = RULES) -> Iterator[Through]:
    with anyio.from_thread.start_blocking_portal() as portal, ExitStack() as stack:
        transport = stack.enter_context(portal.wrap_async_context_manager(node(rules)))
        yield Through(portal, transport)


def shop(limiter: Client, **options: Any) -> flask.Flask:
    app = flask.Flask("shop")

    @app.get("/few")
    def few() -> str:
        return "hello"

    app.wsgi_app = WsgiLimitMiddleware(app.wsgi_app, limiter=limiter, **options)  # type: ignore[method-assign]
    return app


def test_flask_exactly_the_limit_passes_and_says_what_is_left() -> None:
    with blocking_transport() as transport, Client(NODE, transport=transport, timeout_s=10) as limiter:
        caller = shop(limiter).test_client()
        responses = [caller.get("/few") for _ in range(3)]
        head = caller.head("/few")
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[0].headers["RateLimit"].startswith('"few";r=1;t=')
    assert int(responses[2].headers["Retry-After"]) >= 1
    assert json.loads(responses[2].data)["status"] == 429
    assert head.data == b""


def test_flask_strangers_are_who_the_connection_says_unless_a_proxy_is_trusted() -> None:
    for trusted, statuses in (([], [200, 200, 429]), (["127.0.0.1"], [200] * 3)):
        with blocking_transport() as transport, Client(NODE, transport=transport, timeout_s=10) as limiter:
            caller = shop(limiter, trusted_proxies=trusted).test_client()
            assert [
                caller.get("/few", headers={"X-Forwarded-For": f"192.0.2.{i}"}).status_code for i in range(3)
            ] == statuses


def test_flask_what_a_stranger_sends_is_no_fault_of_the_application() -> None:
    with blocking_transport() as transport, Client(NODE, transport=transport, timeout_s=10) as limiter:
        caller = shop(limiter, identify=lambda environ: costing(environ["QUERY_STRING"])).test_client()
        refused = [caller.get(f"/few?{query}") for query in NO_COSTS]
        passed = [caller.get("/few?rows=1").status_code for _ in range(3)]
    assert all(names_the_cost(said.status_code, said.headers, said.data) for said in refused)
    assert passed == [200, 200, 429]


@pytest.mark.parametrize(("choice", "status"), [("allow", 200), ("deny", 503)])
def test_flask_without_an_answer_the_clients_choice_counts(choice: Any, status: int) -> None:
    with Client(NODE, transport=httpx.MockTransport(gone), on_no_answer=choice) as limiter:
        assert shop(limiter).test_client().get("/few").status_code == status


def identify_nobody(request: Any) -> Check | None:
    return None


@pytest.fixture
def django_middleware() -> Iterator[Callable[..., Any]]:
    if not django_settings.configured:
        django_settings.configure(ALLOWED_HOSTS=["*"], DEBUG=False)
        django.setup()
    from apportion.django import LimitMiddleware as DjangoLimitMiddleware
    from django.http import HttpResponse

    def make(**options: Any) -> Any:
        django_settings.APPORTION = options
        return DjangoLimitMiddleware(lambda request: HttpResponse("hello"))

    yield make
    del django_settings.APPORTION


def test_django_exactly_the_limit_passes_and_says_what_is_left(django_middleware: Callable[..., Any]) -> None:
    from django.test import RequestFactory

    with blocking_transport() as transport:
        middleware = django_middleware(url=NODE, transport=transport, timeout_s=10)
        responses = [middleware(RequestFactory().get("/few")) for _ in range(3)]
        middleware.close()
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[0]["RateLimit"].startswith('"few";r=1;t=')
    assert int(responses[2]["Retry-After"]) >= 1
    assert json.loads(responses[2].content)["reason"] == "limited"


def test_django_what_a_stranger_sends_is_no_fault_of_the_application(
    django_middleware: Callable[..., Any],
) -> None:
    from django.test import RequestFactory

    with blocking_transport() as transport:
        middleware = django_middleware(
            url=NODE,
            transport=transport,
            timeout_s=10,
            identify=lambda request: costing(request.META["QUERY_STRING"]),
        )
        refused = [middleware(RequestFactory().get(f"/few?{query}")) for query in NO_COSTS]
        passed = [middleware(RequestFactory().get("/few?rows=1")).status_code for _ in range(3)]
        middleware.close()
    assert all(names_the_cost(said.status_code, said.headers, said.content) for said in refused)
    assert passed == [200, 200, 429]


def test_django_names_a_function_that_says_who_asks(django_middleware: Callable[..., Any]) -> None:
    from django.test import RequestFactory

    middleware = django_middleware(url=NODE, identify=f"{__name__}.identify_nobody", on_no_answer="deny")
    assert middleware(RequestFactory().get("/few")).status_code == 200
    middleware.close()


def test_django_without_an_address_says_what_is_missing(django_middleware: Callable[..., Any]) -> None:
    from django.core.exceptions import ImproperlyConfigured

    with pytest.raises(ImproperlyConfigured, match="url"):
        django_middleware()
