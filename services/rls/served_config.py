"""The configuration of envoyproxy/ratelimit as it lies there: a file, or every ``*.yaml`` of a directory.  I/O.

It is read again when a file of it has changed, appeared or gone (also by a directory that a link now names).  A
configuration that is refused leaves the one in force.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import RuleSet
from regional_limiter.rules import parse_document
from services.rls.envoy_config import import_config

LOOK_EVERY_S: Final = 1.0
FILES_MOST: Final = 500
FILE_BYTES_MOST: Final = 1024 * 1024

_log = structlog.get_logger("rls")

_Seen = tuple[tuple[str, int, int, int], ...]


class ServedConfig:
    """``give`` is told the rule sets that are in force from now on.  ``refused``: how often new ones were not."""

    def __init__(self, path: Path, give: Callable[[Sequence[RuleSet]], None], *, like_envoy: bool = False) -> None:
        self._path = path
        self._give = give
        self._like_envoy = like_envoy
        self._seen: _Seen = ()
        self.refused = 0

    def load(self) -> None:
        """Read it and give it.  Raises InvalidRules with every fault, by file."""
        seen = self._look()
        sets = self._read()
        self._seen = seen
        self._give(sets)
        rules = sum(len(rule_set.rules) for rule_set in sets)
        _log.info("configuration in force", path=str(self._path), domains=len(sets), rules=rules)

    async def watch(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                seen = await asyncio.to_thread(self._look)
                if seen == self._seen:
                    continue
                self._seen = seen
                sets = await asyncio.to_thread(self._read)
            except InvalidRules as error:
                self.refused += 1
                _log.error("configuration refused; the one before stays in force", faults=_words(error))
            else:
                self._give(sets)
                _log.info("configuration changed", path=str(self._path), domains=len(sets))

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        try:
            files = sorted(
                path for path in self._path.iterdir() if path.suffix in (".yaml", ".yml") and path.name[0] != "."
            )
        except OSError as error:
            raise _unreadable(self._path, error) from None
        if not files:
            raise InvalidRules([Fault(str(self._path), "holds no *.yaml")])
        if len(files) > FILES_MOST:
            raise InvalidRules([Fault(str(self._path), f"holds more than {FILES_MOST} files")])
        return files

    def _look(self) -> _Seen:
        found = []
        for path in self._files():
            try:
                status = os.stat(path)
            except OSError as error:
                raise _unreadable(path, error) from None
            found.append((path.name, status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)

    def _read(self) -> list[RuleSet]:
        faults: list[Fault] = []
        sets: dict[str, tuple[Path, RuleSet]] = {}
        for path in self._files():
            try:
                rule_set = self._read_file(path)
            except InvalidRules as error:
                faults += [Fault(f"{path.name}: {fault.place}", fault.problem) for fault in error.faults]
                continue
            first, _ = sets.setdefault(rule_set.domain, (path, rule_set))
            if first is not path:
                faults.append(Fault(f"{path.name}: domain", f"{rule_set.domain} is already that of {first.name}"))
        if faults:
            raise InvalidRules(faults)
        return [rule_set for _, rule_set in sets.values()]

    def _read_file(self, path: Path) -> RuleSet:
        try:
            with path.open("rb") as file:
                text = file.read(FILE_BYTES_MOST + 1)
        except OSError as error:
            raise _unreadable(path, error) from None
        if len(text) > FILE_BYTES_MOST:
            raise InvalidRules([Fault("(file)", f"has more than {FILE_BYTES_MOST:,} bytes")])
        imported = import_config(text, like_envoy=self._like_envoy)
        for note in imported.notes:
            _log.warning("has no effect", file=path.name, place=note.place, why=note.problem)
        return parse_document(imported.document)


def _unreadable(path: Path, error: OSError) -> InvalidRules:
    return InvalidRules([Fault(str(path), f"cannot be read: {error.strerror}")])


def _words(error: InvalidRules) -> list[str]:
    return [f"{fault.place}: {fault.problem}" for fault in error.faults[:20]]
