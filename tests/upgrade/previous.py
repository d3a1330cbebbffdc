"""The version before this one, as nodes, sync service and region script: kept here, so that any clone has it.

``python -m tests.upgrade.previous REF`` keeps another one: a tag or commit of this repository.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("previous.tar.xz")
ROOT = Path(__file__).resolve().parents[2]
KEPT = (
    "regional_limiter",
    "global_sync",
    "services/check_api",
    "services/cli",
    "services/importing",
    "services/quota",
    "services/rls",
    "services/sync_service",
    "infra/region",
    "infra/redis",
)
LEFT_OUT = ("global_sync/simulation/",)
LIBRARY = Path("regional_limiter/store/functions/6_nodes_and_agent.lua")


def unpack(directory: Path) -> Path:
    """The tree of the previous version; processes that are started with it as their working directory run it.

    A remark makes its function library another one, also where the two versions have the same text: both libraries
    then live side by side in every server.
    """
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    library = directory / LIBRARY
    library.write_text(f"{library.read_text()}\n-- as it was before\n")
    return directory


def keep(ref: str) -> None:
    """Make the archive anew from ``ref``."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout

    loose = git("ls-tree", "--name-only", ref, "services/", "infra/").decode().split()
    paths = [*KEPT, *(path for path in loose if path.endswith(".py"))]
    packed = io.BytesIO(git("archive", "--format=tar", ref, *paths))
    with tarfile.open(fileobj=packed) as tree, tarfile.open(ARCHIVE, "w:xz", preset=9) as kept:
        for member in tree:
            if member.isfile() and not member.name.startswith(LEFT_OUT):
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                kept.addfile(member, tree.extractfile(member))


if __name__ == "__main__":
    keep(sys.argv[1])
