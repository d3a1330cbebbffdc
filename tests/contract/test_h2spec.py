"""The HTTP/2 server of gRPC passes the conformance tests of the protocol, with and without TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra import install
from services.rls.messages import METHOD
from services.rls.serving import Tls
from tests.certificates import make_certificates
from tests.unit.rls.test_servers import front


@pytest.mark.timeout(120)
@pytest.mark.parametrize("tls", [False, True])
async def test_every_case_of_h2spec_passes(tmp_path: Path, tls: bool) -> None:
    options = {}
    if tls:
        make_certificates(tmp_path)
        options["tls"] = Tls(tmp_path / "server.pem", tmp_path / "server.key")
    async with front("own", **options) as running:
        command = ["-h", "127.0.0.1", "-p", str(running.server.port), "-o", "10", "-P", METHOD]
        process = await asyncio.create_subprocess_exec(
            str(install.h2spec()), *command, *(["-t", "-k"] if tls else []),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = (await process.communicate())[0].decode()
        assert " 0 skipped, 0 failed" in said, said[-6000:]
        assert process.returncode == 0
        assert running.noted.errors == []
