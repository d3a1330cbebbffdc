"""The files of systemd units under a root: planned, written, deleted.  [IO]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

Change = Literal["new", "changed", "same"]


@dataclass(frozen=True, slots=True)
class UnitFiles:
    """``texts``: of each file by its path.  ``root``: where they are, "/" but for images and tests."""

    root: Path
    texts: Mapping[PurePosixPath, str]

    def has(self, path: PurePosixPath) -> bool:
        return self._at(path).exists()

    def plan(self) -> dict[PurePosixPath, Change]:
        """What ``write`` would do with each file."""
        found: dict[PurePosixPath, Change] = {}
        for path, text in self.texts.items():
            file = self._at(path)
            found[path] = "new" if not file.exists() else "same" if file.read_text() == text else "changed"
        return found

    def write(self) -> dict[PurePosixPath, Change]:
        """What it did with each file."""
        changes = self.plan()
        for path, text in self.texts.items():
            if changes[path] != "same":
                self._at(path).parent.mkdir(parents=True, exist_ok=True)
                self._at(path).write_text(text)
        return changes

    def delete(self) -> list[PurePosixPath]:
        """Those that were there."""
        gone = [path for path in self.texts if self.has(path)]
        for path in gone:
            self._at(path).unlink()
        return gone

    def _at(self, path: PurePosixPath) -> Path:
        return self.root / path.relative_to("/")
