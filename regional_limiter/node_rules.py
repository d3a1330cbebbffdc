"""The rules and bases that a node works by: from disk at the start, then from a point that knows newer ones.  I/O.

A set is taken whole or refused whole; a refused one leaves the set in force, is counted, and is not tried again
until another version comes.  What is new is on disk before it is used, and before a beat says that it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regional_limiter.model.errors import InvalidRules, StoreUnavailable
from regional_limiter.node_files import NodeFiles
from regional_limiter.plan import DomainRules
from regional_limiter.rules import compile_rules, parse_document
from regional_limiter.store.base import CheckStore, TouchReply

_log = logging.getLogger("apportion.node")

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class _Blob:
    version: int
    domains: dict[str, DomainRules]
    refused: dict[str, str]


def read_blob(blob: bytes, region: str, in_force: Mapping[str, DomainRules]) -> _Blob:
    """Every set of a rules blob.  A domain whose set is wrong keeps the one ``in_force``.

    Raises ValueError when the blob is none.
    """
    try:
        document = json.loads(blob)
        version = int(document["version"])
        sets = {
            str(domain): (int(entry["version"]), entry["document"]) for domain, entry in document["sets"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a rules blob: {error!r}") from None
    domains: dict[str, DomainRules] = {}
    refused: dict[str, str] = {}
    for domain, (set_version, source) in sets.items():
        known = in_force.get(domain)
        if known is not None and known.version == set_version:
            domains[domain] = known
            continue
        try:
            rule_set = parse_document(source)
            if rule_set.domain != domain:
                raise ValueError(f"the set says domain {rule_set.domain}")
        except (InvalidRules, ValueError) as error:
            refused[domain] = str(error)
            if known is not None:
                domains[domain] = known
            continue
        domains[domain] = DomainRules(
            set_version,
            rule_set,
            compile_rules(rule_set),
            max(1, len(rule_set.regions)),
            rule_set.largest_share(region),
        )
    return _Blob(version, domains, refused)


class NodeRules:
    """What is in force on this node.  ``on_change`` is called after every change of rules or bases."""

    def __init__(self, region: str, store: CheckStore, directory: Path, on_change: Callable[[], None]) -> None:
        self._region = region
        self._store = store
        self._files = NodeFiles(directory)
        self._learning_rules: asyncio.Task[None] | None = None
        self._learning_bases: asyncio.Task[None] | None = None
        self._tried_version = UNKNOWN
        self.domains: dict[str, DomainRules] = {}
        self.rules_version = UNKNOWN
        self.bases: dict[str, int] = {}
        self.base_version = UNKNOWN
        self.ever_valid = False
        self.refused_sets = 0
        self._on_change = on_change

    # ---- start and end

    async def load(self) -> None:
        """Take up what this node had on disk."""
        bases = await asyncio.to_thread(self._files.read_bases)
        if bases is not None:
            self.base_version, self.bases = bases
            self._on_change()
        blob = await asyncio.to_thread(self._files.read_rules)
        if blob is not None:
            try:
                self._use(await asyncio.to_thread(read_blob, blob, self._region, {}))
            except ValueError as error:
                self.refused_sets += 1
                _log.error("the rules on disk cannot be used: %s", error)

    async def stop(self) -> None:
        tasks = [task for task in (self._learning_rules, self._learning_bases) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- news

    def hear(self, point: str, reply: TouchReply) -> None:
        """A touch has been answered: begin to learn what it says is newer."""
        loop = asyncio.get_running_loop()
        if reply.rules_version > self._tried_version and _idle(self._learning_rules):
            self._learning_rules = loop.create_task(self._learn_rules(point))
        if reply.base_version > self.base_version and _idle(self._learning_bases):
            self._learning_bases = loop.create_task(self._learn_bases(reply.base_version, dict(reply.bases)))

    async def _learn_bases(self, version: int, bases: dict[str, int]) -> None:
        try:
            await asyncio.to_thread(self._files.write_bases, version, bases)
        except OSError as error:
            # Not on disk, so not in use either: the old bases stay, and the agent waits.
            _log.error("bases of version %d cannot be stored: %s", version, error)
            return
        self.base_version, self.bases = version, bases
        self._on_change()

    async def _learn_rules(self, point: str) -> None:
        try:
            version, content = await self._store.fetch_rules(point)
            if version <= self._tried_version:
                return
            read = await asyncio.to_thread(read_blob, content, self._region, self.domains)
        except StoreUnavailable:
            return
        except ValueError as error:
            self._tried_version = max(self._tried_version, version)
            self.refused_sets += 1
            _log.error("rules of version %d cannot be used: %s", version, error)
            return
        if not read.refused:
            try:
                await asyncio.to_thread(self._files.write_rules, content)
            except OSError as error:
                _log.error("rules of version %d cannot be stored: %s", version, error)
        self._use(read)

    def _use(self, read: _Blob) -> None:
        for domain, problem in read.refused.items():
            _log.error("the rule set of %s in version %d is refused: %s", domain, read.version, problem)
        self.refused_sets += len(read.refused)
        self._tried_version = max(self._tried_version, read.version)
        self.domains = read.domains
        if not read.refused:
            self.rules_version = read.version
        self.ever_valid = self.ever_valid or bool(read.domains)
        self._on_change()


def _idle(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
