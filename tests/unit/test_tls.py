"""TLS from files: what a connection is shown, and what happens when the files change."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from services.settings import ClientTls, ServerTls
from services.tls import LOOK_EVERY_S, FreshContext, client_contexts, server_context
from tests.certificates import make_certificates, sign


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("authority")
    make_certificates(directory)
    return directory


@pytest.fixture
def files(made: Path, tmp_path: Path) -> Path:
    """Certificates that a test may change."""
    shutil.copytree(made, tmp_path / "tls")
    return tmp_path / "tls"


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> ssl.SSLObject:
    """Both sides in memory; the client's.  Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server, server_hostname=name)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (asks, answers):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    answers.write(b"x")  # a server without the client's certificate says so here
    assert asks.read(1) == b"x"
    return asks


def shown(connection: ssl.SSLObject) -> str:
    certificate = connection.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_renewed_certificate_is_shown_without_a_restart(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(FreshContext.__init__, "__defaults__", (clock,))
    server = server_context(files / "server.pem", files / "server.key", None, ["http/1.1"])
    client = ClientTls(ca=files / "ca.pem").contexts()
    before = shown(shake_hands(server, client()))
    sign(files, "server")
    assert shown(shake_hands(server, client())) == before, "not looked at before a second is over"
    clock.s += LOOK_EVERY_S
    assert shown(shake_hands(server, client())) != before


def test_a_pair_that_does_not_fit_leaves_the_one_before_in_force(files: Path) -> None:
    clock = Clock()
    builds: list[int] = []

    def build() -> ssl.SSLContext:
        builds.append(1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files / "server.pem", files / "server.key")
        return context

    fresh = FreshContext(build, [files / "server.pem", files / "server.key"], clock)
    first = fresh.current()
    shutil.copy(files / "client.key", files / "server.key")
    clock.s += LOOK_EVERY_S
    assert fresh.current() is first
    clock.s += LOOK_EVERY_S
    assert fresh.current() is first
    assert len(builds) == 2, "what cannot be used is tried once"
    sign(files, "server")
    clock.s += LOOK_EVERY_S
    assert fresh.current() is not first


def test_files_that_are_gone_for_a_moment_leave_what_is_in_force(files: Path) -> None:
    clock = Clock()
    fresh = FreshContext(
        lambda: ssl.create_default_context(cafile=str(files / "ca.pem")), [files / "ca.pem"], clock
    )
    first = fresh.current()
    (files / "ca.pem").rename(files / "away")
    clock.s += LOOK_EVERY_S
    assert fresh.current() is first
    (files / "away").rename(files / "ca.pem")
    clock.s += LOOK_EVERY_S
    assert fresh.current() is first


def test_a_caller_without_a_certificate_is_not_served_where_one_is_wanted(made: Path) -> None:
    server = server_context(made / "server.pem", made / "server.key", made / "ca.pem", ["http/1.1"])
    with pytest.raises(ssl.SSLError):
        shake_hands(server, client_contexts(made / "ca.pem", None, None, check_name=True)())
    with_one = client_contexts(made / "ca.pem", made / "client.pem", made / "client.key", check_name=True)
    assert shown(shake_hands(server, with_one()))


def test_a_server_of_another_authority_or_name_is_not_called(made: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    server = server_context(made / "server.pem", made / "server.key", None, ["http/1.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_contexts(tmp_path / "ca.pem", None, None, check_name=True)())
    ours = client_contexts(made / "ca.pem", None, None, check_name=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, ours(), "somewhere.example.com")
    by_address = client_contexts(made / "ca.pem", None, None, check_name=False)
    assert shown(shake_hands(server, by_address(), "somewhere.example.com"))


WRONG: list[tuple[str, Callable[[Path], object]]] = [
    ("no such file", lambda made: ServerTls(certificate=made / "nothing.pem", key=made / "server.key")),
    ("the key of another", lambda made: ServerTls(certificate=made / "server.pem", key=made / "client.key")),
    ("no certificate", lambda made: ServerTls(certificate=made / "server.key", key=made / "server.key")),
    ("an authority that is none", lambda made: ClientTls(ca=made / "server.key")),
    ("a certificate alone", lambda made: ClientTls(certificate=made / "client.pem")),
]


@pytest.mark.parametrize("make", [row[1] for row in WRONG], ids=[row[0] for row in WRONG])
def test_files_that_cannot_be_used_are_refused_at_the_start(make: Callable[[Path], object], made: Path) -> None:
    with pytest.raises(ValueError, match=r"the files must be readable|give certificate and key"):
        make(made)
