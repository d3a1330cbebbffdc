"""Documents as YAML that people read: in the order in which they stand, each value written where it is.  Pure."""

from __future__ import annotations

from typing import Final

import yaml

LINE_LETTERS: Final = 110


class _Writer(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Two values that are one object are written twice, not as ``&id001`` and ``*id001``."""
        return True


def yaml_text(document: object) -> str:
    """``document`` must hold no cycles."""
    written: str = yaml.dump(document, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=LINE_LETTERS)
    return written
