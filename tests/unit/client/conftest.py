"""The client is a distribution's top-level package; in the repository it lives under clients/python."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "clients" / "python"))
