"""What a node keeps on disk, so that it can start with everything else down: its rules and its bases.  I/O.

A file is replaced whole: written beside, flushed to the disk, renamed.  What cannot be read counts as absent.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

_log = logging.getLogger("apportion.node")


def replace_file(path: Path, content: bytes) -> None:
    """Make ``content`` what ``path`` holds after a power cut: all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class NodeFiles:
    """``rules.json``, ``bases.json``, ``regions.json`` and ``nodes.json`` in a directory that belongs to one node.

    A shared one would let a slower node put older bases back after a faster one has reported newer ones.
    """

    def __init__(self, directory: Path) -> None:
        self._rules = directory / "rules.json"
        self._bases = directory / "bases.json"
        self._regions = directory / "regions.json"
        self._nodes = directory / "nodes.json"

    def read_rules(self) -> bytes | None:
        return self._read(self._rules)

    def write_rules(self, blob: bytes) -> None:
        replace_file(self._rules, blob)

    def read_bases(self) -> tuple[int, dict[str, int]] | None:
        """(base version, base by domain)."""
        content = self._read(self._bases)
        if content is None:
            return None
        try:
            document = json.loads(content)
            return int(document["base_version"]), {str(k): int(v) for k, v in document["bases"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.error("%s cannot be used: %s", self._bases, error)
            return None

    def write_bases(self, version: int, bases: Mapping[str, int]) -> None:
        replace_file(self._bases, json.dumps({"base_version": version, "bases": dict(bases)}).encode())

    def read_regions(self) -> dict[str, int]:
        """The most regions that each domain has ever had, as far as this node knows."""
        content = self._read(self._regions)
        try:
            return {str(k): int(v) for k, v in json.loads(content).items()} if content is not None else {}
        except (ValueError, TypeError, AttributeError) as error:
            _log.error("%s cannot be used: %s", self._regions, error)
            return {}

    def write_regions(self, regions: Mapping[str, int]) -> None:
        replace_file(self._regions, json.dumps(dict(regions)).encode())

    def read_nodes(self) -> int:
        """Among how many nodes the region's part was to be divided; 1 if that is not known."""
        content = self._read(self._nodes)
        try:
            return max(1, int(json.loads(content)["nodes"])) if content is not None else 1
        except (ValueError, TypeError, KeyError) as error:
            _log.error("%s cannot be used: %s", self._nodes, error)
            return 1

    def write_nodes(self, nodes: int) -> None:
        replace_file(self._nodes, json.dumps({"nodes": nodes}).encode())

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.error("%s cannot be read: %s", path, error)
            return None
