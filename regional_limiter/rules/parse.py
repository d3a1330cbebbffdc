"""A rule set from text or from a document: taken whole, or refused whole with every fault by its place.

:func:`parse` reads YAML or JSON, :func:`parse_document` what a reader of JSON made of it.  :func:`with_rule` and
:func:`without_rule` make the document that a change of one rule leads to; they check nothing but their arguments,
because only the whole set can be right or wrong.
"""

from __future__ import annotations

from copy import deepcopy

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import Rule, RuleSet, Subject
from regional_limiter.model.share import FLOOR_PER_MILLE, bases_by_weight
from regional_limiter.rules import grammar
from regional_limiter.rules.canary import with_canary
from regional_limiter.rules.conditions import values_in
from regional_limiter.rules.faults import Faults, nearest, shown
from regional_limiter.rules.fields import (
    below,
    check_fields,
    read_attributes,
    read_integer,
    read_list,
    read_mapping,
    read_name,
)
from regional_limiter.rules.homes import check_homes, read_addresses
from regional_limiter.rules.overrides import read_overrides
from regional_limiter.rules.quantities import read_per_mille
from regional_limiter.rules.rule import read_rule
from regional_limiter.rules.stored_subjects import read_stored_subjects
from regional_limiter.rules.text import Format, read_with_faults


def parse(text: bytes | str, *, format: Format | None = None) -> RuleSet:
    """The rule set that ``text`` writes (at most 1 MiB; ``format`` None: found out).  Raises InvalidRules."""
    document, faults = read_with_faults(text, format)
    return _parse(document, faults)


def parse_document(document: object) -> RuleSet:
    """The rule set of a plain document (dict, list, str, int, float, bool, None).  Raises InvalidRules.

    The set's ``source`` is a copy of the document: parsing it again gives an equal set.
    """
    return _parse(document, Faults())


def _parse(document: object, faults: Faults) -> RuleSet:
    before = faults.count
    fields = read_mapping(faults, "", document)
    if faults.count > before:
        raise faults.error()
    check_fields(faults, "", fields, grammar.SET_FIELDS)
    domain = read_name(faults, "domain", fields.get("domain", "default"), grammar.NAME, grammar.NAME_EXPECTED)
    before = faults.count
    regions = _read_regions(faults, fields["regions"]) if "regions" in fields else {}
    known_regions = len(regions) if faults.count == before else None
    floor_per_mille = FLOOR_PER_MILLE
    if "floor" in fields:
        floor_per_mille = read_per_mille(faults, "floor", fields["floor"], FLOOR_PER_MILLE)
        if "regions" not in fields:
            faults.add("floor", "is a part of what each region has: the set has to name its regions")
    addresses = read_addresses(faults, "addresses", fields.get("addresses", {}))
    defaults = read_attributes(faults, "defaults", fields.get("defaults", {}))
    subjects = _read_subjects(faults, fields.get("subjects", []))
    stored_subjects = read_stored_subjects(faults, fields.get("stored_subjects", False))
    if "rules" not in fields:
        faults.add("rules", "missing: a list of rules, which may be empty")
    rules = _read_rules(faults, fields.get("rules", []), domain, known_regions)
    check_homes(faults, rules, fields.get("rules"), regions, addresses)
    overrides = read_overrides(
        faults, fields.get("overrides", []), {rule.id: rule for rule in rules}, _ids_in(fields), known_regions
    )
    faults.raise_if_any()
    return RuleSet(
        domain=domain,
        regions=regions,
        bases=bases_by_weight(regions) if regions else {},
        defaults=defaults,
        subjects=subjects,
        rules=rules,
        overrides=overrides,
        stored_subjects=stored_subjects,
        floor_per_mille=floor_per_mille,
        addresses=addresses,
        source=deepcopy(fields),
    )


def with_rule(document: object, rule_id: str, source: object) -> dict[str, object]:
    """The document with ``source`` as its rule ``rule_id``: in the old one's place, or at the end.

    ``source`` may leave out the id.  Raises InvalidRules if it is no mapping or says another id, or if the
    document has no list of rules to put it in.
    """
    if not isinstance(source, dict):
        raise InvalidRules([Fault("rule", f"must be a mapping, not {shown(source)}")])
    if "id" in source and source["id"] != rule_id:
        raise InvalidRules([Fault("rule.id", f"says {shown(source['id'])}, but the change is of {shown(rule_id)}")])
    changed, rules = _copy_with_rules(document)
    rule: object = {"id": rule_id, **_copied(source)}
    places = [index for index, known in enumerate(rules) if _has_id(known, rule_id)]
    if places:
        rules[places[0]] = rule
    else:
        rules.append(rule)
    return changed


def without_rule(document: object, rule_id: str) -> dict[str, object]:
    """The document without its rule ``rule_id`` and the overrides of it (an equal document when it has none)."""
    changed, rules = _copy_with_rules(document)
    changed["rules"] = [known for known in rules if not _has_id(known, rule_id)]
    overrides = changed.get("overrides")
    if isinstance(overrides, list):
        changed["overrides"] = [
            known for known in overrides if not (isinstance(known, dict) and known.get("rule") == rule_id)
        ]
    return changed


def _copy_with_rules(document: object) -> tuple[dict[str, object], list[object]]:
    """A copy with a list of rules of its own; what does not change is shared, since nobody changes a document."""
    if not isinstance(document, dict):
        raise InvalidRules([Fault("document", f"must be a mapping, not {shown(document)}")])
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise InvalidRules([Fault("rules", f"must be a list, not {shown(rules)}")])
    rules = list(rules)
    return {**document, "rules": rules}, rules


def _copied(mapping: dict[str, object]) -> dict[str, object]:
    try:
        return deepcopy(mapping)
    except RecursionError:
        raise InvalidRules([Fault("document", "is nested far deeper than any rule set")]) from None


def _has_id(rule: object, rule_id: str) -> bool:
    return isinstance(rule, dict) and rule.get("id") == rule_id


# ---- parts of a set


def _read_regions(faults: Faults, value: object) -> dict[str, int]:
    """Weights by region: a mapping, or a list of regions of equal weight."""
    regions: dict[str, int] = {}
    before = faults.count
    if isinstance(value, list):
        for index, item in enumerate(read_list(faults, "regions", value, grammar.REGIONS_MOST)):
            place = f"regions[{index}]"
            name = read_name(faults, place, item, grammar.NAME, grammar.NAME_EXPECTED)
            if name and name in regions:
                faults.add(place, f"{name} is named twice")
            regions[name] = 1
    else:
        mapping = read_mapping(faults, "regions", value)
        if len(mapping) > grammar.REGIONS_MOST:
            faults.add("regions", f"at most {grammar.REGIONS_MOST} regions, not {len(mapping)}")
            return {}
        for name, weight in mapping.items():
            place = below("regions", name)
            read_name(faults, place, name, grammar.NAME, grammar.NAME_EXPECTED)
            regions[name] = read_integer(faults, place, weight, 0, grammar.WEIGHT_MOST)
    if faults.count == before and not any(regions.values()):
        faults.add("regions", "at least one region must have a weight above 0" if regions else "must not be empty")
    return regions


def _read_subjects(faults: Faults, value: object) -> tuple[Subject, ...]:
    subjects = []
    seen: dict[frozenset[tuple[str, str]], int] = {}
    for index, item in enumerate(read_list(faults, "subjects", value, grammar.SUBJECTS_MOST)):
        place = f"subjects[{index}]"
        fields = read_mapping(faults, place, item)
        where = read_attributes(faults, place, {name: text for name, text in fields.items() if name != "set"})
        if not where:
            faults.add(place, 'must name whom it is about, such as client_key: "acme"')
        for name, text in where.items():
            if "*" in text:
                faults.add(below(place, name), "a subject is found by exact text, without wildcards")
        attributes = read_attributes(faults, below(place, "set"), fields.get("set"))
        first = seen.setdefault(frozenset(where.items()), index)
        if where and first != index:
            faults.add(place, f"is about the same as subjects[{first}]")
        subjects.append(Subject(where, attributes))
    shapes = {frozenset(subject.where) for subject in subjects}
    if len(shapes) > grammar.SUBJECT_SHAPES_MOST:
        faults.add(
            "subjects",
            f"found by {len(shapes)} different sets of attributes: at most {grammar.SUBJECT_SHAPES_MOST}",
        )
    return tuple(subjects)


def _ids_in(fields: dict[str, object]) -> set[str]:
    """The ids that the document gives its rules, also to faulty ones."""
    rules = fields.get("rules")
    ids = [rule.get("id") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    return {name for name in ids if isinstance(name, str)}


def _check_replaces(faults: Faults, place: str, rule: Rule, ids: set[str]) -> None:
    for index, name in enumerate(rule.replaces):
        if name not in ids:
            close = nearest(name, ids)
            hint = f"; did you mean {close}?" if close else ""
            faults.add(f"{below(place, 'replaces')}[{index}]", f"no rule has the id {shown(name)}{hint}")


def _read_rules(faults: Faults, value: object, domain: str, regions: int | None) -> tuple[Rule, ...]:
    rules = []
    ids = _ids_in({"rules": value})
    first_place: dict[str, str] = {}
    values = 0
    for index, item in enumerate(read_list(faults, "rules", value, grammar.RULES_MOST)):
        place = f"rules[{index}]"
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and first_place.setdefault(name, place) != place:
            faults.add(below(place, "id"), f"{shown(name)} is already the id of {first_place[name]}")
        rule = read_rule(faults, place, item, domain, regions)
        if rule is not None:
            rules.append(with_canary(faults, place, rule, regions))
            values += sum(map(values_in, rule.match))
            _check_replaces(faults, place, rule, ids)
    views = {view for rule in rules for view in rule.normalise}
    if len(views) > grammar.VIEWS_MOST:
        faults.add("rules", f"at most {grammar.VIEWS_MOST} different normal forms of attributes, not {len(views)}")
    if values > grammar.MATCH_VALUES_OF_SET_MOST:
        faults.add("rules", f"at most {grammar.MATCH_VALUES_OF_SET_MOST:,} values to match in all, not {values:,}")
    return tuple(rules)
