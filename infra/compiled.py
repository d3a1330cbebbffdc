"""``make compiled``: the wheel with its compiled modules (``hatch_build.py``), in an environment beside ``.venv``.

Nothing compiled ever lies in the source tree, where it would be run instead of what is edited.  The environment has
the wheel alone; what that stands on, and pytest, are those of the Python that runs this.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from infra.install import ROOT, cache_directory

PLACE = ROOT / ".compiled"
BUILD_TIMEOUT_S = 900


class BuildFailed(Exception):
    """What the builder said, and what a person can do."""


def build(place: Path) -> Path:
    """The Python of an environment in ``place`` that has the compiled wheel.  Raises BuildFailed."""
    uv = shutil.which("uv") or str(cache_directory() / "uv" / "bin" / "uv")
    shutil.rmtree(place, ignore_errors=True)
    given = {"APPORTION_COMPILED": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    environment = os.environ | given
    _run([uv, "build", "--wheel", "-q", "--python", sys.executable, "-o", str(place), str(ROOT)], environment)
    (wheel,) = place.glob("*.whl")
    _run([uv, "venv", "-q", "--python", sys.executable, str(place / "venv")], environment)
    python = place / "venv" / "bin" / "python"
    _run([uv, "pip", "install", "-q", "--no-deps", "--python", str(python), str(wheel)], environment)
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    # Its .pth files are not read so: the source tree is not in the path.
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False, env=environment
    )
    if done.returncode:
        hint = (
            "a C compiler and Python's headers are needed; a person can: apt-get install gcc libc6-dev python3-dev"
        )
        raise BuildFailed(f"{' '.join(command[:3])}: {(done.stderr or done.stdout)[-3000:]}\n{hint}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=PLACE, help="where it goes (%(default)s); replaced")
    try:
        print(build(parser.parse_args().place))
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
