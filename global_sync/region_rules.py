"""The rules that a region's agent hands to its nodes: newest accepted sets, kept on disk.  [IO]"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from global_sync.rule_states import RulesFold
from regional_limiter.model.keys import identity_of, plain_identity, rule_of
from regional_limiter.model.rule import Rate, Rule, Scope
from regional_limiter.node_files import replace_file
from regional_limiter.rules import KnownSet, Source, encode_blob, read_blob
from regional_limiter.rules.rule import is_in_escrow

log = structlog.get_logger(__name__)


class RegionRules:
    """Folds the rules topic; ``settle`` makes what was folded the rules in force.  ``path`` None: not kept on disk.

    A domain whose set is wrong keeps the one before, and no other domain back.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._fold = RulesFold()
        self._blob = b""
        self._sets: Mapping[str, KnownSet] = {}
        self._rules: dict[tuple[str, str], Rule] = {}
        self._overridden: dict[tuple[str, str, str], Rule] = {}
        self.version = -1
        self.refused = 0
        self.has_escrow = False
        """Some rule has windows in escrow."""

    def load(self) -> None:
        """Start from the last known sets on disk, if there are any."""
        if self._path is None:
            return
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
        sources = {
            domain: Source(state.version, state.document) for domain, state in states.items() if not state.deleted
        }
        try:
            return self._use(encode_blob(version, sources), keep=True)
        except OSError as error:
            log.error("rules cannot be stored, the old ones stay", version=version, error=str(error))
            return False

    def _use(self, blob: bytes, *, keep: bool = False) -> bool:
        try:
            read = read_blob(blob, self._sets)
        except ValueError as error:
            self.refused += 1
            log.error("rules refused, the old ones stay", error=str(error))
            return False
        for domain, problem in read.refused.items():
            self.refused += 1
            log.error("rule set refused, the old one stays", domain=domain, version=read.version, error=problem)
        in_force = encode_blob(read.version, read.in_force)
        if keep and self._path is not None:
            replace_file(self._path, in_force)
        self._sets = read.sets
        self._rules = {
            (domain, rule.id): rule for domain, known in read.sets.items() for rule in known.rule_set.rules
        }
        self.has_escrow = any(map(_is_in_escrow, self._rules.values()))
        self._overridden = {
            (domain, rule, plain_identity(key)): override.in_force
            for domain, known in read.sets.items()
            for rule, by_key in known.rule_set.overrides.items()
            for key, override in by_key.items()
        }
        self._blob, self.version = in_force, read.version
        return True

    def blob(self) -> bytes:
        return self._blob

    def refill_of(self, key: str) -> Rate | None:
        """The refill of the rule that a bucket key belongs to; None when it is gone or has none.

        An override of a key that is hashed is not seen here: such a key's wants are out of proportion by as much
        as the override changes its refill, which moves no more than its share.
        """
        try:
            name = rule_of(key)
            rule = self._overridden.get((*name, identity_of(key))) or self._rules.get(name)
        except ValueError:  # no bucket key
            return None
        return rule.refill if rule else None


def _is_in_escrow(rule: Rule) -> bool:
    return rule.scope is Scope.GLOBAL and is_in_escrow(rule.algorithm, rule.distribution)
