"""The plain server: grpcio, the library that every client knows, around the same methods."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from regional_limiter.submitting import settled
from services.rls.messages import MESSAGE_BYTES_MOST
from services.rls.methods import Methods, Observer, Stream, Unary, failed
from services.rls.rpc import UNAUTHENTICATED, Failed
from services.rls.serving import FrontOptions

CALLS_MOST = 4096
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """One listener.  ``start`` raises OSError when the address cannot be had.  ``more``: options of grpcio's."""

    def __init__(
        self, methods: Methods, options: FrontOptions, observer: Observer, more: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._more = more
        self._methods = methods
        self._options = options
        self._observer = observer
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        options = self._options
        settings = {
            # Two copies on one port would share the traffic in silence.
            "grpc.so_reuseport": 0,
            "grpc.max_receive_message_length": MESSAGE_BYTES_MOST,
            "grpc.max_metadata_size": 16 * 1024,
            "grpc.http2.min_ping_interval_without_data_ms": 5000,
            **dict(self._more),
        }
        server = grpc.aio.server(maximum_concurrent_rpcs=CALLS_MOST, options=list(settings.items()))
        server.add_generic_rpc_handlers((_Handlers(self._methods, options.token, self._observer),))
        address = f"{options.host}:{options.port}"
        try:
            if options.tls is None:
                self.port = server.add_insecure_port(address)
            else:
                tls = options.tls
                credentials = grpc.ssl_server_credentials(
                    [(tls.key.read_bytes(), tls.certificate.read_bytes())],
                    tls.client_ca.read_bytes() if tls.client_ca else None,
                    tls.client_ca is not None,
                )
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"{address}: {error}") from None
        if not self.port:
            raise OSError(f"{address}: cannot be listened on")
        await server.start()
        self._server = server

    def drain(self) -> None:
        """Health says so by itself; grpcio tells its callers when it stops."""

    async def stop(self, finish_s: float) -> None:
        """Take no new calls, tell callers to go elsewhere, and give what is under way ``finish_s``."""
        if self._server is not None:
            await self._server.stop(finish_s)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, methods: Methods, token: str | None, observer: Observer) -> None:
        self._observer = observer
        self._authorization = f"Bearer {token}".encode() if token else None
        self._handlers = {path: self._handler(method) for path, method in methods.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: Unary | Stream) -> Any:
        if isinstance(method, Unary):
            return grpc.unary_unary_rpc_method_handler(self._unary(method))
        return grpc.stream_stream_rpc_method_handler(self._stream(method))

    def _unary(self, method: Unary) -> Any:
        async def call(data: bytes, context: Any) -> bytes:
            try:
                self._admit(context)
                return await settled(lambda ended: method.ask(data, ended, _traceparent(context)))
            except Exception as error:
                await self._abort(context, error)
                raise

        return call

    def _stream(self, method: Stream) -> Any:
        async def call(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            try:
                self._admit(context)
                async for message in method.call(messages):
                    yield message
            except Exception as error:
                await self._abort(context, error)
                raise

        return call

    def _admit(self, context: Any) -> None:
        if self._authorization is None:
            return
        given = next((value for name, value in context.invocation_metadata() if name == "authorization"), "")
        given = given if isinstance(given, bytes) else given.encode()
        if not hmac.compare_digest(given, self._authorization):
            raise Failed(UNAUTHENTICATED, "a bearer token is needed")

    async def _abort(self, context: Any, error: Exception) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        end = failed(error, self._observer)
        await context.abort(_CODES[end.code], end.words)


def _traceparent(context: Any) -> bytes:
    told = next((value for name, value in context.invocation_metadata() or () if name == "traceparent"), "")
    return told.encode() if isinstance(told, str) else told
