"""The configuration of envoyproxy/ratelimit -> a rule set that decides the same.  Pure.

There a descriptor is looked up level by level: an exact value first, then the wildcards as declared, then the key
alone; what is found is entered for good, and the limit must lie as deep as the descriptor.  Here rules stand
in that order, each for exactly these keys (``descriptor.keys``), and each ends the search.  Where a level without a
limit is entered for a descriptor that a less exact neighbour would limit, a rule without a limit stands between.

A configuration is taken whole or refused whole, with every fault by its place (``descriptors[2].rate_limit.unit``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules import grammar, parse_document
from regional_limiter.rules.faults import nearest
from regional_limiter.rules.text import read_document
from services.importing.imported import Imported
from services.rls.messages import UNIT_MS, Unit
from services.rls.naming import KEYS, keys_text, numbered

DEPTH_MOST: Final = 12
DESCRIPTORS_MOST: Final = 5000

_SET = ("domain", "descriptors")
_DESCRIPTOR = (
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
)
_LIMIT = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
_WITHOUT_EFFECT = {
    "detailed_metric": "usage is counted by rule, not by value",
    "value_to_metric": "usage is counted by rule, not by value",
    "metadata": "answers carry no metadata of single descriptors",
}
_REQUESTS_MOST = 2**32 - 1


def import_config(text: bytes | str, *, like_envoy: bool = False, domain: str | None = None) -> Imported:
    """Read a configuration.  ``like_envoy``: denied requests are charged too.  ``domain``: in place of its own.

    Raises InvalidRules with every fault.
    """
    reader = _Reader(like_envoy)
    fields = reader.mapping("(file)", read_document(text, None), _SET)
    own = fields.get("domain")
    name = domain or own
    if not isinstance(name, str) or not grammar.NAME.fullmatch(name):
        hint = "" if domain or not isinstance(own, str) or not own else ": import it under another name"
        reader.fault("domain", f"must be {grammar.NAME_EXPECTED}{hint}")
    levels = reader.level("descriptors", fields.get("descriptors"), 1)
    if reader.faults:
        raise InvalidRules(reader.faults)
    document = {"domain": name, "rules": _Writer(reader, like_envoy).rules(levels)}
    parse_document(document)
    return Imported(str(name), document, tuple(reader.notes))


@dataclass(slots=True)
class _Node:
    place: str
    key: str
    value: str
    below: list[_Node]
    limit: dict[str, Any] | None = None
    """The fields of the rule that limits here, without whom it is about."""
    name: str = ""
    replaces: list[tuple[str, str]] = field(default_factory=list)
    shared: bool = False

    @property
    def rank(self) -> int:
        """How early it is looked at, among those of its key."""
        return 2 if not self.value else 1 if self.value.endswith("*") else 0


class _Reader:
    def __init__(self, like_envoy: bool) -> None:
        self._like_envoy = like_envoy
        self._seen = 0
        self.faults: list[Fault] = []
        self.notes: list[Fault] = []

    def fault(self, place: str, problem: str) -> None:
        if len(self.faults) < 100:
            self.faults.append(Fault(place, problem))

    def mapping(self, place: str, value: Any, known: Sequence[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fault(place, "must be a mapping")
            return {}
        for name in value:
            if name not in known:
                close = nearest(str(name), known)
                at = str(name) if place == "(file)" else f"{place}.{name}"
                self.fault(at, "is not known here" + (f"; did you mean {close}?" if close else ""))
        return {str(name): item for name, item in value.items()}

    def level(self, place: str, value: Any, depth: int) -> list[_Node]:
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault(place, "must be a list")
            return []
        if depth > DEPTH_MOST:
            self.fault(place, f"lies deeper than {DEPTH_MOST} levels")
            return []
        nodes: dict[tuple[str, str], _Node] = {}
        for index, item in enumerate(value):
            self._seen += 1
            if self._seen > DESCRIPTORS_MOST:
                self.fault("descriptors", f"more than {DESCRIPTORS_MOST} in all")
                return []
            node = self._node(f"{place}[{index}]", item, depth)
            first = nodes.setdefault((node.key, node.value), node)
            if first is not node:
                self.fault(node.place, f"is the same as {first.place}")
        return list(nodes.values())

    def _node(self, place: str, item: Any, depth: int) -> _Node:
        fields = self.mapping(place, item, _DESCRIPTOR)
        key, value = fields.get("key"), fields.get("value", "")
        if not isinstance(key, str) or not grammar.ATTRIBUTE.fullmatch(key):
            self.fault(f"{place}.key", f"must be {grammar.ATTRIBUTE_EXPECTED}")
            key = ""
        if type(value) is int:
            value = str(value)
        if value is None:
            value = ""
        if not isinstance(value, str):
            self.fault(f"{place}.value", "must be a text: write it in quotes")
            value = ""
        if "*" in value[:-1]:
            self.fault(f"{place}.value", "a * that is not at the end cannot be told from a wildcard here")
        for name, why in _WITHOUT_EFFECT.items():
            if fields.get(name):
                self.notes.append(Fault(f"{place}.{name}", f"has no effect: {why}"))
        shared = self._flag(place, fields, "share_threshold")
        if shared and not value.endswith("*"):
            self.fault(f"{place}.share_threshold", "only values with a wildcard can share one counter")
        node = _Node(place, key, value, self.level(f"{place}.descriptors", fields.get("descriptors"), depth + 1))
        node.shared = shared
        shadow, quota = self._flag(place, fields, "shadow_mode"), self._flag(place, fields, "quota_mode")
        if shadow and quota:
            self.fault(f"{place}.quota_mode", "cannot be set beside shadow_mode")
        given = fields.get("rate_limit")
        if given is not None:
            self._limit(node, f"{place}.rate_limit", given, "shadow" if shadow else "soft" if quota else "enforce")
        elif shadow or quota:
            self.notes.append(Fault(place, "shadow_mode and quota_mode have no effect without rate_limit"))
        return node

    def _limit(self, node: _Node, place: str, given: Any, mode: str) -> None:
        fields = self.mapping(place, given, _LIMIT)
        unlimited = self._flag(place, fields, "unlimited")
        rule: dict[str, Any] = {"unlimited": True}
        unit, requests = fields.get("unit"), fields.get("requests_per_unit")
        if unlimited:
            if unit is not None:
                self.fault(f"{place}.unit", "what is unlimited has no unit")
        else:
            unit_name = str(unit).upper()
            if unit_name not in Unit.__members__ or unit_name == "UNKNOWN":
                self.fault(f"{place}.unit", f"must be one of {', '.join(u.name.lower() for u in UNIT_MS)}")
                unit_name = "SECOND"
            if type(requests) is not int or not 0 <= requests <= _REQUESTS_MOST:
                missing = " (left out, it would be 0, which denies everything)" if requests is None else ""
                self.fault(f"{place}.requests_per_unit", f"must be a whole number from 0{missing}")
                requests = 0
            window_s = UNIT_MS[Unit[unit_name]] // 1000
            rule = {"algorithm": "fixed_window", "limit": requests, "window": window_s}
            if self._like_envoy:
                rule["charge_denied"] = True
            if mode != "enforce":
                rule["mode"] = mode
        name = fields.get("name")
        if name is not None and not isinstance(name, str):
            self.fault(f"{place}.name", "must be a text")
        node.limit, node.name = rule, name if isinstance(name, str) else ""
        node.replaces = list(self._replaces(node, f"{place}.replaces", fields.get("replaces")))
        if node.replaces and mode == "shadow":
            self.fault(f"{place}.replaces", "a rule in shadow mode changes nothing, so it cannot replace another")

    def _replaces(self, node: _Node, place: str, value: Any) -> Iterator[tuple[str, str]]:
        if value is None:
            return
        if not isinstance(value, list):
            self.fault(place, "must be a list of names")
            return
        for index, item in enumerate(value):
            at = f"{place}[{index}]"
            name = self.mapping(at, item, ("name",)).get("name")
            if not isinstance(name, str) or not name:
                self.fault(f"{at}.name", "must be the name of a rate_limit")
            elif name == node.name:
                self.fault(f"{at}.name", "is this limit itself")
            else:
                yield at, name

    def _flag(self, place: str, fields: Mapping[str, Any], name: str) -> bool:
        value = fields.get(name, False)
        if type(value) is not bool:
            self.fault(f"{place}.{name}", "must be true or false")
        return value is True


@dataclass(frozen=True, slots=True)
class _Way:
    """How a descriptor has come to a level: (key, value, shared) of each level above."""

    steps: tuple[tuple[str, str, bool], ...] = ()

    def then(self, node: _Node) -> _Way:
        return _Way((*self.steps, (node.key, node.value, node.shared)))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key, _, _ in self.steps)

    def about(self) -> tuple[dict[str, Any], list[str]]:
        """Values to match, by attribute; and the attributes that a counter belongs to."""
        names = numbered(self.keys)
        match = {name: value for name, (_, value, _) in zip(names, self.steps, strict=True) if value}
        own = [
            name
            for name, (_, value, shared) in zip(names, self.steps, strict=True)
            if not value or (value.endswith("*") and not shared)
        ]
        return match, own

    def words(self) -> str:
        return ".".join(f"{key}_{value}" if value else key for key, value, _ in self.steps)


class _Writer:
    def __init__(self, reader: _Reader, like_envoy: bool) -> None:
        self._reader = reader
        self._ids: set[str] = set()
        self._named: dict[str, list[str]] = {}
        self._replacing: list[tuple[dict[str, Any], list[tuple[str, str]]]] = []
        self._rules: list[dict[str, Any]] = []

    def rules(self, nodes: Sequence[_Node]) -> list[dict[str, Any]]:
        self._level(nodes, _Way())
        for rule, replaced in self._replacing:
            ids: list[str] = []
            for place, name in replaced:
                if name not in self._named:
                    self._reader.notes.append(Fault(place, f"has no effect: no limit is named {name}"))
                ids += [one for one in self._named.get(name, []) if one != rule["id"]]
            if ids:
                rule["replaces"] = ids
        return self._rules

    def _level(self, nodes: Sequence[_Node], way: _Way) -> None:
        ranked = sorted(nodes, key=lambda node: node.rank)  # of equals the first declared
        for place, node in enumerate(ranked):
            here = way.then(node)
            self._limit(node, here)
            self._level(node.below, here)
            others = [other for other in ranked[place + 1 :] if other.key == node.key and other.rank > 0]
            paths = sorted({path for other in others for path in _limited(other, way.keys)})
            if paths:
                self._between(here, paths)

    def _limit(self, node: _Node, way: _Way) -> None:
        if node.limit is None:
            return
        match, own = way.about()
        rule = {
            "id": self._id(node.name or way.words()),
            "description": way.words()[:200],
            "match": {KEYS: keys_text(way.keys), **match},
            "key": own,
            **node.limit,
        }
        if rule.get("mode") != "shadow":  # which keeps no other rule away: what stands between does
            rule["stop"] = True
        self._rules.append(rule)
        if node.name:
            self._named.setdefault(node.name, []).append(rule["id"])
        if node.replaces:
            self._replacing.append((rule, node.replaces))

    def _between(self, way: _Way, paths: Sequence[str]) -> None:
        match, _ = way.about()
        for start in range(0, len(paths), grammar.MATCH_VALUES_MOST):
            self._rules.append(
                {
                    "id": self._id(f"{way.words()}.no-limit"),
                    "description": f"{way.words()[:150]}: entered, and no limit lies there",
                    "match": {KEYS: list(paths[start : start + grammar.MATCH_VALUES_MOST]), **match},
                    "key": [],
                    "unlimited": True,
                    "stop": True,
                }
            )

    def _id(self, words: str) -> str:
        plain = re.sub(r"[^a-z0-9._-]+", "-", words.lower())
        name = plain if plain == words and len(plain) <= 64 else ""
        if not name:
            # Different words may look the same once they are plain; the digest keeps them apart over changes too.
            name = f"{plain[:52]}-{blake2b(words.encode(), digest_size=4).hexdigest()}"
        unique, number = name, 1
        while unique in self._ids:
            number += 1
            unique = f"{name[:60]}-{number}"
        self._ids.add(unique)
        return unique


def _limited(node: _Node, above: tuple[str, ...]) -> Iterator[str]:
    """The keys of every descriptor that ``node`` or what lies below it limits."""
    keys = (*above, node.key)
    if node.limit is not None:
        yield keys_text(keys)
    for inner in node.below:
        yield from _limited(inner, keys)
