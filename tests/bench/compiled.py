"""What compiling gives leader and agent (``hatch_build.py``): both benches of ``shares.py`` in turns.  Not a test.

    python -m tests.bench.compiled [--turns 5]

Builds ``.compiled`` if it is not there; ``make compiled`` builds it anew.  Processor time as a part of a core.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from infra.compiled import PLACE, build

SHARES = Path(__file__).with_name("shares.py")
SAID = {"the leader": r"^leader: .*: ([\d.]+) of a core", "the agent's demand": r"demand ([\d.]+) of a core"}


def measured(python: Path) -> list[float]:
    """What the bench says, in the order of SAID.  By its file: the source tree is not in the path then."""
    command = [str(python), str(SHARES), "--seconds", "4"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False).stdout
    found = [re.search(pattern, said, re.MULTILINE) for pattern in SAID.values()]
    assert all(found), said
    return [float(match[1]) for match in found if match is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    compiled = PLACE / "venv" / "bin" / "python"
    if not compiled.exists():
        build(PLACE)
    pairs = [(measured(Path(sys.executable)), measured(compiled)) for _ in range(turns)]
    print(f"{'of a core':<24}{'Python':>9}{'compiled':>10}{'ratio':>8}{'lowest':>8}{'highest':>9}")
    for place, name in enumerate(SAID):
        plain_cores, compiled_cores = ([turn[which][place] for turn in pairs] for which in (0, 1))
        ratios = sorted(b / a for a, b in zip(plain_cores, compiled_cores, strict=True) if a)
        print(
            f"{name:<24}{median(plain_cores):>9.2f}{median(compiled_cores):>10.2f}{median(ratios):>8.2f}"
            f"{ratios[0]:>8.2f}{ratios[-1]:>9.2f}"
        )


if __name__ == "__main__":
    main()
