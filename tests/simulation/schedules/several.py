"""90 on: several points in a region, keys that come and go, records that get lost."""

from __future__ import annotations
