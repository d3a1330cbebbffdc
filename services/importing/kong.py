"""The rate-limiting plugin of Kong's declarative configuration -> a rule set that decides the same.  Pure.

Of several plugins that fit a request Kong runs the most specific one: a consumer's before a route's before a
service's before that for everything.  So they stand in this order here, and each ends the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import parse_document
from regional_limiter.rules.text import read_document
from services.importing.imported import Findings, Ids, Imported

PLUGIN = "rate-limiting"
_WINDOWS: Mapping[str, object] = {
    "second": "1s",
    "minute": "1min",
    "hour": "1h",
    "day": {"calendar": "day"},
    "month": {"calendar": "month"},
    "year": {"calendar": "year"},
}
_KEYS: Mapping[str, list[str]] = {
    "consumer": ["client_key"],
    "credential": ["client_key"],
    "ip": ["ip"],
    "service": [],
}
_WITHOUT_EFFECT: Mapping[str, str] = {
    "policy": "buckets live in the region's Redis",
    "redis": "buckets live in the region's Redis",
    "sync_rate": "every check is charged at once",
    "error_code": "what denied callers are told, the gateway says",
    "error_message": "what denied callers are told, the gateway says",
}
_KNOWN = (*_WINDOWS, "limit_by", "header_name", "path", "fault_tolerant", "hide_client_headers", *_WITHOUT_EFFECT)
_OTHER_LIMITERS = ("rate-limiting-advanced", "response-ratelimiting", "ai-rate-limiting-advanced")

_Found = tuple[str, dict[str, Any], str, dict[str, Any]]
"""A plugin: its place, itself, what its rules are called, and what they match."""


def import_kong(text: bytes | str, *, domain: str | None = None) -> Imported:
    """Read a declarative configuration, or one plugin by itself.  Raises InvalidRules with every fault."""
    document = read_document(text, None)
    reader = _Reader()
    rules = reader.rules(document)
    if not rules and not reader.findings.faults:
        reader.findings.fault("plugins", f"no {PLUGIN} plugin is in it: there is nothing to import")
    if reader.findings.faults:
        raise InvalidRules(reader.findings.faults)
    made: dict[str, Any] = {"domain": domain or "default", "rules": rules}
    parse_document(made)
    return Imported(str(made["domain"]), made, reader.findings.notes)


class _Reader:
    def __init__(self) -> None:
        self.findings = Findings()
        self._id = Ids()

    def rules(self, document: object) -> list[dict[str, Any]]:
        if not isinstance(document, dict):
            self.findings.fault("document", "must be a mapping")
            return []
        if "config" in document and "plugins" not in document:
            return list(self._plugin("", {"name": PLUGIN, **document}, "all", {}, is_last=True))
        consumers: list[_Found] = []
        routes: list[_Found] = []
        services: list[_Found] = []
        everything: list[_Found] = []
        for place, consumer in self._items("consumers", document):
            name = consumer.get("username") or consumer.get("custom_id")
            if self._plugins(place, consumer) and not isinstance(name, str):
                self.findings.fault(place, "a consumer needs a username")
            consumers += [
                (at, plugin, f"consumer-{name}", {"client_key": name})
                for at, plugin in self._plugins(place, consumer)
            ]
        for place, service in self._items("services", document):
            own = list(self._items("routes", service, place))
            for at, route in own:
                matches = self._route(at, route)
                name = route.get("name") or "route"
                routes += [(at, plugin, f"{name}", matches) for at, plugin in self._plugins(at, route)]
            for at, plugin in self._plugins(place, service):
                if not own:
                    self.findings.fault(at, "a service without routes in it cannot be told by a request")
                for route_at, route in own:
                    name = f"{service.get('name') or 'service'}"
                    services.append((at, plugin, name, self._route(route_at, route)))
                if len(own) > 1:
                    self.findings.note(
                        at, "counted for the whole service in Kong; here each of its routes by itself"
                    )
        for place, route in self._items("routes", document):
            routes += [
                (at, plugin, f"{route.get('name') or 'route'}", self._route(place, route))
                for at, plugin in self._plugins(place, route)
            ]
        for at, plugin in self._plugins("", document):
            scoped = [name for name in ("consumer", "route", "service", "consumer_group") if plugin.get(name)]
            if scoped:
                self.findings.fault(f"{at}.{scoped[0]}", f"write the plugin inside of its {scoped[0]} instead")
            everything.append((at, plugin, "all", {}))
        if any(self._plugins(place, group) for place, group in self._items("consumer_groups", document)):
            self.findings.fault("consumer_groups", "limits of consumer groups have no counterpart: use a tier")
        found = [*consumers, *routes, *services, *everything]
        made: list[dict[str, Any]] = []
        for number, (at, plugin, name, match) in enumerate(found, start=1):
            made += self._plugin(at, plugin, name, match, is_last=number == len(found))
        return made

    def _items(self, name: str, inside: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        at = f"{place}.{name}" if place else name
        items = inside.get(name) or []
        if not isinstance(items, list):
            self.findings.fault(at, "must be a list")
            return
        for index, item in enumerate(items):
            if isinstance(item, dict):
                yield f"{at}[{index}]", item
            else:
                self.findings.fault(f"{at}[{index}]", "must be a mapping")

    def _plugins(self, place: str, inside: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for at, plugin in self._items("plugins", inside, place):
            name = plugin.get("name")
            if name in _OTHER_LIMITERS:
                self.findings.fault(f"{at}.name", f"{name} has no counterpart: only {PLUGIN} is imported")
            elif name == PLUGIN and plugin.get("enabled", True) is False:
                self.findings.note(at, "is not enabled, and left out")
            elif name == PLUGIN:
                found.append((at, plugin))
        return found

    def _route(self, place: str, route: Mapping[str, Any]) -> dict[str, Any]:
        """What a request of this route looks like."""
        match: dict[str, Any] = {}
        for name, attribute in (("hosts", "host"), ("methods", "method"), ("paths", "path")):
            values = route.get(name) or []
            texts = [text for text in values if isinstance(text, str)] if isinstance(values, list) else []
            for text in texts:
                if text.startswith("~") or (name == "paths" and "*" in text):
                    self.findings.fault(f"{place}.{name}", f"{text}: a regular expression has no counterpart")
            if texts:
                match[attribute] = [f"{text}*" for text in texts] if name == "paths" else texts
        for name in ("headers", "snis", "sources", "destinations", "expression"):
            if route.get(name):
                self.findings.fault(
                    f"{place}.{name}", "has no counterpart: routes are told by hosts, methods and paths"
                )
        if not match and not self.findings.faults:
            self.findings.note(place, "this route takes every request")
        return match

    def _plugin(
        self, at: str, plugin: Mapping[str, Any], name: str, match: Mapping[str, Any], *, is_last: bool
    ) -> Iterator[dict[str, Any]]:
        config = plugin.get("config") or {}
        place = f"{at}.config" if at else "config"
        if not isinstance(config, dict):
            self.findings.fault(place, "must be a mapping")
            return
        for field in config:
            if field not in _KNOWN and not str(field).startswith("redis_"):
                self.findings.fault(f"{place}.{field}", "is not known here")
            elif config[field] is not None and (field in _WITHOUT_EFFECT or str(field).startswith("redis_")):
                self.findings.note(
                    f"{place}.{field}", f"has no effect: {_WITHOUT_EFFECT.get(str(field), 'as redis')}"
                )
        windows = [field for field in _WINDOWS if config.get(field) is not None]
        if not windows:
            self.findings.fault(place, f"says no limit: one of {', '.join(_WINDOWS)}")
        common: dict[str, Any] = {"match": dict(match), "key": self._key(place, config)}
        if config.get("hide_client_headers") is True:
            common["headers"] = False
        if (tolerant := config.get("fault_tolerant")) is not None:
            common["on_store_failure"] = "open" if tolerant else "closed"
        for number, window in enumerate(windows, start=1):
            limit = config[window]
            if type(limit) is not int or limit <= 0:
                self.findings.fault(f"{place}.{window}", "must be a whole number above 0")
                continue
            rule = {"id": self._id(f"{name}-{window}"), **common, "algorithm": "fixed_window"}
            rule |= {"limit": limit, "window": _WINDOWS[window]}
            if number == len(windows) and not is_last:
                rule["stop"] = True
            yield rule

    def _key(self, place: str, config: Mapping[str, Any]) -> list[str]:
        by = config.get("limit_by") or "consumer"
        if by == "header":
            header = config.get("header_name")
            if isinstance(header, str) and header:
                attribute = "header_" + re.sub(r"[^a-z0-9_]", "_", header.lower())
                self.findings.note(f"{place}.header_name", f"checks have to bring the attribute {attribute}")
                return [attribute]
            self.findings.fault(f"{place}.header_name", "missing: limit_by: header needs it")
        elif by not in _KEYS:
            self.findings.fault(f"{place}.limit_by", f"{by} has no counterpart: one of {', '.join(_KEYS)}, header")
        elif by in ("consumer", "credential"):
            self.findings.note(
                f"{place}.limit_by", f"the {by} is client_key here; Kong takes the address of who has none"
            )
        return list(_KEYS.get(str(by), []))
