"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def _openssl(*arguments: str, directory: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)


def make_certificates(directory: Path) -> None:
    """``ca.pem``, and NAME``.pem`` with NAME``.key`` for ``server`` (127.0.0.1, localhost) and ``client``."""
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"),
        directory=directory,
    )
    sign(directory, "server", "client")


def sign(directory: Path, *names: str) -> None:
    """New certificates and keys by the authority of ``directory``."""
    for name in names:
        (directory / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
            directory=directory,
        )
        _openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
            directory=directory,
        )
