"""The rules that a region's agent hands to its nodes: newest accepted sets, kept on disk.  [IO]"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog

from global_sync.rulebook import RulesFold
from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.keys import rule_of
from regional_limiter.model.rule import Rate, Rule
from regional_limiter.rules import parse_document

log = structlog.get_logger(__name__)


class RegionRules:
    """Folds the rules topic; ``settle`` makes what was folded the rules in force, once it is whole and valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fold = RulesFold()
        self._blob = b""
        self._rules: dict[tuple[str, str], Rule] = {}
        self.version = -1
        self.refused = 0

    def load(self) -> None:
        """Start from the last known sets on disk, if there are any."""
        try:
            blob = self._path.read_bytes()
        except FileNotFoundError:
            return
        if self._use(blob):
            log.info("rules from disk", version=self.version)

    def take(self, value: bytes) -> None:
        self._fold.take(value)

    def settle(self) -> bool:
        """True when newer sets were taken.  They are on disk before they count."""
        states = self._fold.states()
        version = max((state.version for state in states.values()), default=-1)
        if version <= self.version:
            return False
        sets = {domain: {"version": state.version, "document": state.document} for domain, state in states.items()}
        blob = msgspec.json.encode({"version": version, "sets": sets})
        if not self._use(blob):
            return False
        write_whole(self._path, blob)
        return True

    def _use(self, blob: bytes) -> bool:
        try:
            content = msgspec.json.decode(blob)
            rules: dict[tuple[str, str], Rule] = {}
            for domain, state in content["sets"].items():
                for rule in parse_document(state["document"]).rules:
                    rules[domain, rule.id] = rule
        except (msgspec.DecodeError, InvalidRules, KeyError, TypeError) as error:
            self.refused += 1
            log.error("rules refused, the old ones stay", error=str(error))
            return False
        self._rules, self._blob, self.version = rules, blob, int(content["version"])
        return True

    def blob(self) -> bytes:
        return self._blob

    def refill_of(self, key: str) -> Rate | None:
        """The refill of the rule that a bucket key belongs to; None when it is gone or has none."""
        rule = self._rules.get(rule_of(key))
        return rule.refill if rule else None


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
