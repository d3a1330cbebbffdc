"""The TypeScript client is built and tested by Node, with a real node of ours behind it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from infra import install

SOURCE = Path(__file__).resolve().parents[2] / "clients" / "typescript"
DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.timeout(180)


def test_the_typescript_client_passes_its_tests_against_a_node(node: str, tmp_path: Path) -> None:
    programs = install.node()
    work = tmp_path / "typescript"
    shutil.copytree(SOURCE, work, ignore=shutil.ignore_patterns("node_modules", "dist"))
    for name in ("clients", "migrating"):
        [code] = re.findall(r"```ts\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
        (work / "src" / f"page_{name}.ts").write_text(code.replace('from "apportion"', 'from "./index.js"'))
    environment = {
        **os.environ,
        "APPORTION_NODE": node,
        "PATH": f"{programs.parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    for command in (["npm", "ci", "--no-fund", "--no-audit"], ["npm", "test"], ["npm", "run", "test:node"]):
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert (work / "dist" / "index.d.ts").exists()
