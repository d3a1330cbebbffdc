"""``limit_req_zone`` and ``limit_req`` of nginx -> a rule set that decides the same.  Pure.

nginx lets ``burst`` requests more than one through and refills at the rate: a bucket of ``burst + 1`` tokens.  With
``nodelay`` they pass at once, without it each at its turn: then the bucket is a queue.

Of a server's locations the most specific one counts, with its own limits or those around it: so places stand in
this order here, and each ends the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules import parse_document
from services.importing.imported import Findings, Ids, Imported
from services.importing.nginx_syntax import BYTES_MOST, Directive, read_directives

_RATE = re.compile(r"rate=([1-9][0-9]{0,8})r/([sm])", re.ASCII)
_ZONE = re.compile(r"zone=([^:]+)(?::\S+)?")
_VARIABLE = re.compile(r"\$\{?([A-Za-z0-9_]+)\}?", re.ASCII)
_ATTRIBUTES = {
    "binary_remote_addr": "ip",
    "remote_addr": "ip",
    "realip_remote_addr": "ip",
    "host": "host",
    "http_host": "host",
    "server_name": "host",
    "uri": "path",
    "document_uri": "path",
    "request_method": "method",
}
_WITHOUT_EFFECT = ("limit_req_status", "limit_req_log_level")
_OTHERS = ("limit_conn", "limit_conn_zone", "limit_rate", "limit_rate_after")


@dataclass(frozen=True, slots=True)
class _Zone:
    name: str
    key: tuple[str, ...]
    refill: str
    line: int


@dataclass(frozen=True, slots=True)
class _Use:
    zone: str
    burst: int
    delayed: bool


@dataclass(frozen=True, slots=True)
class _Limits:
    """What applies somewhere: the uses of zones, and whether they only count."""

    uses: tuple[_Use, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """``path``: a location's pattern; None: the rest of the server."""

    path: str | None
    limits: _Limits

    def holds(self, other: _Place) -> bool:
        """Whether ``other`` is more specific and inside of this one."""
        if self.path is None:
            return other.path is not None
        if other.path is None or other.path == self.path or not self.path.endswith("*"):
            return False
        return other.path.startswith(self.path[:-1])


def import_nginx(text: bytes | str, *, domain: str | None = None) -> Imported:
    """Read an nginx configuration, or a part of one.  Raises InvalidRules with every fault."""
    if len(text) > BYTES_MOST:
        raise InvalidRules([Fault("file", f"at most {BYTES_MOST:,} bytes")])
    root = read_directives(text.decode(errors="replace") if isinstance(text, bytes) else text)
    reader = _Reader()
    document = {"domain": domain or "default", "rules": reader.rules(root)}
    if reader.findings.faults:
        raise InvalidRules(reader.findings.faults)
    parse_document(document)
    return Imported(str(document["domain"]), document, reader.findings.notes)


class _Reader:
    def __init__(self) -> None:
        self.findings = Findings()
        self._zones: dict[str, _Zone] = {}
        self._ids: dict[str, list[str]] = {}
        self._id = Ids()

    def rules(self, root: Directive) -> list[dict[str, Any]]:
        blocks = [root, *_inside(root, "http")]
        for block in _everything(root):
            self._note(block)
        for block in blocks:
            for zone in block.all("limit_req_zone"):
                self._read_zone(zone)
        outer = _Limits()
        for block in blocks:
            outer = self._limits(block, outer)
        servers = [(server, self._hosts(server)) for block in blocks for server in block.all("server")]
        if not servers:
            rules = self._place_rules([_Place(None, outer)], (), is_last=True)
        else:
            ordered = [one for one in servers if one[1]] + [one for one in servers if not one[1]]
            rules = []
            for number, (server, hosts) in enumerate(ordered, start=1):
                places = self._places(server, self._limits(server, outer))
                rules += self._place_rules(places, hosts, is_last=number == len(ordered))
        if not self.findings.faults and not any("unlimited" not in rule for rule in rules):
            self.findings.fault("file", "no limit_req applies anywhere: there is nothing to import")
        self._note_shared()
        while rules and rules[-1].get("unlimited"):
            rules.pop()
        return rules

    # ---- directives

    def _note(self, one: Directive) -> None:
        if one.name == "include":
            self.findings.note(one.place, f"include {' '.join(one.arguments)} is not read: import it by itself")
        elif one.name in _WITHOUT_EFFECT:
            self.findings.note(
                one.place, f"{one.name} has no effect: what denied callers are told, the gateway says"
            )
        elif one.name in _OTHERS:
            self.findings.note(one.place, f"{one.name} is not imported: only limit_req_zone and limit_req are")
        elif one.name == "if" and any(one.all("limit_req")):
            self.findings.fault(one.place, "limit_req inside of an if has no counterpart")

    def _read_zone(self, one: Directive) -> None:
        zone = next((found for text in one.arguments if (found := _ZONE.fullmatch(text))), None)
        rate = next((found for text in one.arguments if (found := _RATE.fullmatch(text))), None)
        if zone is None or rate is None or not one.arguments:
            self.findings.fault(one.place, "limit_req_zone must say KEY zone=NAME:SIZE rate=Nr/s (or r/m)")
            return
        for text in one.arguments[1:]:
            if text not in (zone[0], rate[0]):
                self.findings.fault(one.place, f"{text} has no counterpart")
        key = self._key(one.arguments[0], one)
        self._zones[zone[1]] = _Zone(zone[1], key, f"{rate[1]}/{'s' if rate[2] == 's' else 'min'}", one.line)

    def _key(self, text: str, one: Directive) -> tuple[str, ...]:
        names = []
        for variable in _VARIABLE.findall(text):
            name = _ATTRIBUTES.get(variable)
            if name is None:
                name = variable
                self.findings.note(
                    one.place,
                    f"${variable}: checks have to bring the attribute {variable}; those without it share a bucket,"
                    " where nginx does not limit an empty key",
                )
            if name not in names:
                names.append(name)
        if "ip" in names:
            self.findings.note(one.place, "addresses: a node counts IPv6 by /64, which nginx does not")
        return tuple(names)

    def _limits(self, block: Directive, outer: _Limits) -> _Limits:
        """What applies in a block: its own limits, or else those around it."""
        uses = [use for one in block.all("limit_req") if (use := self._use(one)) is not None]
        dry = [one.arguments[:1] == ("on",) for one in block.all("limit_req_dry_run")]
        return _Limits(tuple(uses) or outer.uses, dry[-1] if dry else outer.dry_run)

    def _use(self, one: Directive) -> _Use | None:
        zone, burst, delayed = None, 0, True
        for text in one.arguments:
            name, _, value = text.partition("=")
            if name == "zone" and value:
                zone = value
            elif name == "burst" and value.isascii() and value.isdigit() and len(value) < 10:
                burst = int(value)
            elif text == "nodelay":
                delayed = False
            elif name == "delay":
                problem = f"{text}: a burst of which a part passes at once has no counterpart: nodelay, or no delay"
                self.findings.fault(one.place, problem)
            else:
                self.findings.fault(one.place, f"{text} has no counterpart")
        if zone is None:
            self.findings.fault(one.place, "limit_req must name its zone=NAME")
        elif zone not in self._zones:
            self.findings.fault(one.place, f"no limit_req_zone is named {zone}")
        else:
            return _Use(zone, burst, delayed and burst > 0)
        return None

    # ---- places

    def _hosts(self, server: Directive) -> tuple[str, ...]:
        """The names of a server; empty: of every host that no other has."""
        hosts: list[str] = []
        for one in server.all("server_name"):
            for name in one.arguments:
                if name.startswith("~"):
                    self.findings.fault(one.place, f"server_name {name}: a regular expression has no counterpart")
                elif name.startswith("."):
                    hosts += [name[1:], f"*{name}"]
                elif name not in ("_", '""', ""):
                    hosts.append(name)
        listens = [one.arguments for one in server.all("listen")]
        return () if any("default_server" in words for words in listens) else tuple(hosts)

    def _places(self, server: Directive, around: _Limits) -> list[_Place]:
        places = [*self._locations(server, around), _Place(None, around)]
        return places if any(place.limits != around for place in places) else [_Place(None, around)]

    def _locations(self, block: Directive, around: _Limits) -> Iterator[_Place]:
        for one in block.all("location"):
            limits = self._limits(one, around)
            modifier, path = one.arguments[0] if len(one.arguments) > 1 else "", (one.arguments or ("",))[-1]
            if modifier.startswith("~") or path.startswith("@"):
                if limits != around:
                    kind = "a named location" if path.startswith("@") else "a regular expression"
                    self.findings.fault(one.place, f"location {' '.join(one.arguments)}: {kind} has no counterpart")
                elif modifier.startswith("~"):
                    self.findings.note(
                        one.place, f"location {modifier} {path} is taken for the place that its paths lie in"
                    )
                continue
            if "*" in path:
                self.findings.fault(one.place, f"location {path}: a * in a path has no counterpart")
                continue
            yield from self._locations(one, limits)
            yield _Place(path if modifier == "=" else f"{path}*", limits)

    def _place_rules(
        self, places: Sequence[_Place], hosts: tuple[str, ...], *, is_last: bool
    ) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = []
        groups = _grouped(places)
        for number, group in enumerate(groups, start=1):
            match: dict[str, Any] = {}
            if hosts:
                match["host"] = _one_or_more(list(hosts))
            paths = [place.path for place in group if place.path is not None]
            if None not in [place.path for place in group]:
                match["path"] = _one_or_more(paths)
            stop = not (is_last and number == len(groups))
            rules += self._rules_of(group[0].limits, match, stop=stop)
        return rules

    def _rules_of(self, limits: _Limits, match: dict[str, Any], *, stop: bool) -> Iterator[dict[str, Any]]:
        for number, use in enumerate(limits.uses, start=1):
            zone = self._zones[use.zone]
            rule: dict[str, Any] = {"id": self._id(use.zone), "match": match, "key": list(zone.key)}
            if use.delayed:
                rule |= {"algorithm": "leaky_bucket", "capacity": use.burst + 1, "leak": zone.refill, "queue": True}
            else:
                rule |= {"capacity": use.burst + 1, "refill": zone.refill}
            if limits.dry_run:
                rule["mode"] = "shadow"
            elif stop and number == len(limits.uses):
                rule["stop"] = True
            self._ids.setdefault(use.zone, []).append(str(rule["id"]))
            yield rule
        if stop and (limits.dry_run or not limits.uses):
            yield {"id": self._id("unlimited"), "match": match, "unlimited": True, "stop": True}

    def _note_shared(self) -> None:
        for zone, ids in self._ids.items():
            if len(ids) > 1:
                place = f"line {self._zones[zone].line}"
                words = (
                    f"zone {zone} is one count in nginx; here each of its rules counts by itself: {', '.join(ids)}"
                )
                self.findings.note(place, words)


def _grouped(places: Sequence[_Place]) -> list[list[_Place]]:
    """The places in an order in which the first that fits is the right one; those with equal limits together where
    that order allows it."""
    specific_first = sorted(
        places, key=lambda place: -len(place.path or "") - (not (place.path or "*").endswith("*"))
    )
    together: dict[_Limits, list[_Place]] = {}
    for place in specific_first:
        together.setdefault(place.limits, []).append(place)
    return _ordered(list(together.values())) or [[place] for place in specific_first]


def _ordered(groups: list[list[_Place]]) -> list[list[_Place]] | None:
    """Each group before those that hold one of its places; None: there is no such order."""
    left, ordered = list(groups), []
    while left:
        free = next(
            (
                group
                for group in left
                if not any(place.holds(other) for other_group in left if other_group is not group
                           for place in group for other in other_group)
            ),
            None,
        )  # fmt: skip
        if free is None:
            return None
        left.remove(free)
        ordered.append(free)
    return ordered


def _one_or_more(texts: list[str]) -> str | list[str]:
    return texts[0] if len(texts) == 1 else texts


def _inside(block: Directive, name: str) -> list[Directive]:
    return list(block.all(name))


def _everything(block: Directive) -> Iterator[Directive]:
    for one in block.inner or ():
        yield one
        yield from _everything(one)
