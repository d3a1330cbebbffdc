"""Every bench of this folder, one after another: ``python -m tests.bench [NAME …]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    wanted = sys.argv[1:] or names
    if unknown := set(wanted) - set(names):
        print(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    failed = 0
    for name in wanted:
        print(f"\n==== {name}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"tests.bench.{name}"]).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
