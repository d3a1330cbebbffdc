"""TLS from files.  A certificate that is renewed on disk is shown with the next connection, without a restart.

The files are looked at when a connection is made, at most once a second.  A pair that cannot be used (half written,
or a key of another certificate) is logged, and the one before stays in force.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0

Stamp = tuple[tuple[int, int, int], ...]


class FreshContext:
    """What ``build`` makes of ``files``, made again when one of them has changed.

    Raises OSError (ssl.SSLError is one) when the first cannot be made.
    """

    def __init__(
        self,
        build: Callable[[], ssl.SSLContext],
        files: Sequence[Path],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._build = build
        self._files = tuple(files)
        self._now_s = now_s
        self._stamp = self._look()
        self._context = build()
        self._looked_s = now_s()

    def current(self) -> ssl.SSLContext:
        """The context for a connection that is made now."""
        now_s = self._now_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return
            self._stamp = stamp  # a pair that cannot be used is tried, and told, once
            self._context = self._build()
        except OSError as error:
            _log.error("the TLS files cannot be used; the ones before stay", error=str(error))
        else:
            _log.info("the TLS files have changed and are used", files=[str(file) for file in self._files])

    def _look(self) -> Stamp:
        seen = [file.stat() for file in self._files]
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in seen)


def server_context(certificate: Path, key: Path, client_ca: Path | None, alpn: Sequence[str]) -> ssl.SSLContext:
    """For a listener; callers must show a certificate of ``client_ca`` if there is one.  Raises OSError."""

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(list(alpn))
        return context

    fresh = FreshContext(build, [certificate, key, *([client_ca] if client_ca else [])])
    shown = build()

    def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _shown: ssl.SSLContext) -> None:
        connection.context = fresh.current()

    # Called for every handshake, whether the caller names a server or not.
    shown.sni_callback = newest
    return shown


def client_contexts(
    ca: Path | None, certificate: Path | None, key: Path | None, *, check_name: bool
) -> Callable[[], ssl.SSLContext]:
    """For calls: each connection asks for its context.  Without ``ca``: the system's.  Raises OSError."""

    def build() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        context.check_hostname = check_name
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context

    return FreshContext(build, [file for file in (ca, certificate, key) if file is not None]).current
