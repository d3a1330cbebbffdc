"""The rules and bases that a node works by: from disk at the start, then from a point that knows newer ones.  I/O.

A set is taken whole or refused whole; a refused one leaves the set in force, is counted, and is not tried again
until another version comes.  A domain that was refused with nothing in force stays named: it has rules, so its
checks must not be answered as if it had none.  What is new is on disk before it is used, and before a beat says
that it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.rule import RuleSet
from regional_limiter.node_files import NodeFiles
from regional_limiter.plan import DomainRules
from regional_limiter.rules import Blob, KnownSet, compile_rules, encode_blob, read_blob
from regional_limiter.store.base import CheckStore, TouchReply

_log = logging.getLogger("apportion.node")

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class _Read:
    blob: Blob
    domains: dict[str, DomainRules]


def _read(content: bytes, region: str, in_force: Mapping[str, DomainRules], regions: Mapping[str, int]) -> _Read:
    """Read and compile.  ``regions``: the most that each domain has had so far.

    Takes a second or two for a large set, so call it in a thread.

    Raises ValueError when ``content`` is no rules blob.
    """
    known = {name: KnownSet(rules.version, rules.rule_set) for name, rules in in_force.items()}
    blob = read_blob(content, known)
    domains = {
        name: in_force[name] if known.get(name) is entry else _compiled(entry, region, regions.get(name, 1))
        for name, entry in blob.sets.items()
    }
    return _Read(blob, domains)


def _compiled(entry: KnownSet, region: str, regions_before: int) -> DomainRules:
    """A region that was taken out may still use its base until its nodes hear of it.  With the largest number of
    regions ever (one token of the capacity each) all of them together still hold no more than the whole.
    """
    rule_set = entry.rule_set
    return DomainRules(
        entry.version,
        rule_set,
        compile_rules(rule_set),
        max(regions_before, len(rule_set.regions)),
        rule_set.largest_share(region),
        region,
    )


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
        self._given: dict[str, DomainRules] = {}
        self.rules_version = UNKNOWN
        self.bases: dict[str, int] = {}
        self.base_version = UNKNOWN
        self.ever_valid = False
        self.refused_sets = 0
        self.refused: Mapping[str, str] = {}
        """Domain -> why its newest set is not in force."""
        self._regions: dict[str, int] = {}
        self._regions_on_disk: dict[str, int] = {}
        self._on_change = on_change
        self.nodes_on_disk = 1
        self._keeping_nodes: asyncio.Task[None] | None = None

    # ---- start and end

    async def load(self) -> None:
        """Take up what this node had on disk."""
        bases = await asyncio.to_thread(self._files.read_bases)
        if bases is not None:
            self.base_version, self.bases = bases
            self._on_change()
        self.nodes_on_disk = await asyncio.to_thread(self._files.read_nodes)
        self._regions = self._regions_on_disk = await asyncio.to_thread(self._files.read_regions)
        blob = await asyncio.to_thread(self._files.read_rules)
        if blob is not None:
            try:
                self._use(await asyncio.to_thread(_read, blob, self._region, {}, self._regions))
            except Exception as error:
                # The point may have better ones; without any, the node is not ready.
                self.refused_sets += 1
                _log.error(
                    "the rules on disk cannot be used: %s", error, exc_info=not isinstance(error, ValueError)
                )

    async def stop(self) -> None:
        tasks = [
            task for task in (self._learning_rules, self._learning_bases, self._keeping_nodes) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def give(self, rule_sets: Iterable[RuleSet]) -> None:
        """Use these sets for their domains, whatever the region says of these, in place of those given before.

        They are this node's own: they are not stored, and limit in this region alone.
        """
        self._given = {rule_set.domain: _compiled(KnownSet(0, rule_set), self._region, 1) for rule_set in rule_sets}
        self.ever_valid = self.ever_valid or bool(self._given)
        self._on_change()

    @property
    def in_force(self) -> Mapping[str, DomainRules]:
        """By domain, those that were given to this node before those of the region."""
        return self.domains | self._given

    # ---- news

    def hear(self, point: str, reply: TouchReply) -> None:
        """A touch has been answered: begin to learn what it says is newer."""
        loop = asyncio.get_running_loop()
        if reply.rules_version > self._tried_version and _idle(self._learning_rules):
            self._learning_rules = loop.create_task(self._learn_rules(point, reply.rules_version))
        if reply.base_version > self.base_version and _idle(self._learning_bases):
            self._learning_bases = loop.create_task(self._learn_bases(reply.base_version, dict(reply.bases)))

    def keep_nodes(self, nodes: int) -> None:
        """Among so many nodes the region's part is to be divided: the next process of this one begins with that."""
        if nodes != self.nodes_on_disk and _idle(self._keeping_nodes):
            self._keeping_nodes = asyncio.get_running_loop().create_task(self._keep_nodes(nodes))

    async def _keep_nodes(self, nodes: int) -> None:
        self.nodes_on_disk = nodes
        try:
            await asyncio.to_thread(self._files.write_nodes, nodes)
        except OSError as error:
            _log.error("the number of nodes cannot be stored: %s", error)

    async def _learn_bases(self, version: int, bases: dict[str, int]) -> None:
        try:
            await asyncio.to_thread(self._files.write_bases, version, bases)
        except OSError as error:
            # Not on disk, so not in use either: the old bases stay, and the agent waits.
            _log.error("bases of version %d cannot be stored: %s", version, error)
            return
        except Exception:
            _log.exception("bases of version %d cannot be taken", version)
            return
        self.base_version, self.bases = version, bases
        self._on_change()

    async def _learn_rules(self, point: str, told_version: int) -> None:
        version = told_version
        try:
            version, content = await self._store.fetch_rules(point)
            if version <= self._tried_version:
                return
            read = await asyncio.to_thread(_read, content, self._region, self.domains, self._regions)
            await asyncio.to_thread(self._keep, read)
            self._tried_version = version
            self._use(read)
        except StoreUnavailable:
            return
        except Exception as error:
            # Also what nobody foresaw: the rules in force stay, and this version is not tried at every touch.
            self._tried_version = max(self._tried_version, version)
            self.refused_sets += 1
            foreseen = isinstance(error, ValueError)
            _log.error("rules of version %d cannot be used: %s", version, error, exc_info=not foreseen)

    def _keep(self, read: _Read) -> None:
        """Write what will be in force to disk; under the old version while a domain of the new one is refused."""
        blob = read.blob
        version = self.rules_version if blob.refused else blob.version
        try:
            # Before the rules: whoever starts with these rules must know of the regions that were more.
            if (regions := self._regions_with(read)) != self._regions_on_disk:
                self._files.write_regions(regions)
                self._regions_on_disk = regions
            self._files.write_rules(encode_blob(version, blob.in_force))
        except OSError as error:
            _log.error("rules of version %d cannot be stored: %s", blob.version, error)

    def _regions_with(self, read: _Read) -> dict[str, int]:
        return self._regions | {name: rules.regions for name, rules in read.domains.items()}

    def _use(self, read: _Read) -> None:
        blob = read.blob
        for domain, problem in blob.refused.items():
            _log.error("the rule set of %s in version %d is refused: %s", domain, blob.version, problem)
        self.refused_sets += len(blob.refused)
        self._tried_version = max(self._tried_version, blob.version)
        self._regions = self._regions_with(read)
        self.domains, self.refused = read.domains, blob.refused
        if not blob.refused:
            self.rules_version = blob.version
        self.ever_valid = self.ever_valid or bool(read.domains)
        self._on_change()


def _idle(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
