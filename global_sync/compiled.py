"""Whether the modules that can be compiled are (``hatch_build.py``)."""

from __future__ import annotations

from typing import Final

from global_sync.protocol import leader

IS_COMPILED: Final = not str(leader.__file__).endswith(".py")
