"""YAML or JSON text -> a plain document, safely.

Both readers make only dict, list, str, int, float, bool and None, in bounded size and depth, refuse a key given
twice, and refuse what would be read differently by different readers or could not be held exactly.

YAML is built here from the parser's events instead of by PyYAML's loaders: those read ``no`` as false, ``010`` as
8 and ``12:30`` as 750, let the last of two equal keys win, recurse as deep as the text, and expand aliases
without bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NoReturn

import yaml

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules.faults import Faults, shown
from regional_limiter.rules.grammar import DOCUMENT_BYTES_MOST

DEPTH_MOST = 32
EXPANDED_MOST = 4 * DOCUMENT_BYTES_MOST
"""Characters and nodes of a document with its aliases written out."""

_LONGEST_NUMBER = 40
_LONGEST_INTEGER = 18
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_AMBIGUOUS = re.compile(
    r"(?i:yes|no|on|off|y|n)"
    r"|[-+]?0(?:[0-9_]+|o[0-7]+|x[0-9a-fA-F_]+|b[01_]+)"
    r"|[-+]?[0-9]+(?:_[0-9_]*)(?:\.[0-9_]*)?"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|[-+]?\.(?i:inf)|\.(?i:nan)"
    r"|[-+]\.[0-9]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+",
    re.ASCII,
)
_FLOAT = re.compile(r"(?:\.[0-9]+|[-+]?[0-9]+\.[0-9]*)(?:[eE][-+][0-9]+)?", re.ASCII)
_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Format = Literal["yaml", "json"]


def read_document(text: bytes | str, format: Format | None) -> object:
    """The document in ``text``; ``format`` None: JSON if it is JSON, else YAML.  Raises InvalidRules."""
    document, faults = read_with_faults(text, format)
    faults.raise_if_any()
    return document


def read_with_faults(text: bytes | str, format: Format | None) -> tuple[object, Faults]:
    """The document, and the faults of its words.  Raises InvalidRules where no document can be made out."""
    plain = _decoded(text)
    if format == "json":
        return _read_json(plain)
    if format is None and plain.lstrip()[:1] in ("{", "["):
        try:
            return _read_json(plain)
        except _NotJson as json_error:
            try:
                return _read_yaml(plain)
            except InvalidRules:
                raise json_error from None
    return _read_yaml(plain)


def _fail(place: str, problem: str) -> NoReturn:
    raise InvalidRules([Fault(place, problem)])


def _decoded(text: bytes | str) -> str:
    try:
        encoded = text.encode() if isinstance(text, str) else text
        if len(encoded) > DOCUMENT_BYTES_MOST:
            _fail("document", f"at most {DOCUMENT_BYTES_MOST:,} bytes, not {len(encoded):,}")
        return (text if isinstance(text, str) else encoded.decode()).removeprefix("\ufeff")
    except UnicodeError:
        _fail("document", "must be UTF-8")


# ---- numbers


def _exact_integer(text: str) -> int | None:
    return int(text) if len(text.lstrip("+-")) <= _LONGEST_INTEGER else None


def _exact_float(text: str) -> float | None:
    """The double that ``text`` names, if its shortest decimal is the same number as ``text``."""
    if len(text) > _LONGEST_NUMBER:
        return None
    value = float(text)
    try:
        return value if Decimal(repr(value)) == Decimal(text) else None
    except InvalidOperation:
        return None


_TOO_LONG = "has more digits than can be held exactly (about 15)"


# ---- JSON


class _NotJson(InvalidRules):
    """The text is not JSON at all."""


def _read_json(text: str) -> tuple[object, Faults]:
    faults = Faults()

    def integer(digits: str) -> int:
        value = _exact_integer(digits)
        if value is None:
            faults.add("document", f"the number {shown(digits)} {_TOO_LONG}")
        return value or 0

    def decimal(digits: str) -> float:
        value = _exact_float(digits)
        if value is None:
            faults.add("document", f"the number {shown(digits)} {_TOO_LONG}")
        return value or 0.0

    def constant(word: str) -> float:
        faults.add("document", f"{word} is not a number of JSON")
        return 0.0

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for name, value in items:
            if name in mapping:
                faults.add("document", f"the key {shown(name)} is given twice in one object")
            mapping[name] = value
        return mapping

    try:
        document: object = json.loads(
            text, parse_int=integer, parse_float=decimal, parse_constant=constant, object_pairs_hook=pairs
        )
    except json.JSONDecodeError as error:
        raise _NotJson([Fault(f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}")]) from None
    except RecursionError:
        _fail("document", f"nested deeper than {DEPTH_MOST} levels")
    if not _is_shallow(document):
        _fail("document", f"nested deeper than {DEPTH_MOST} levels")
    return document, faults


def _is_shallow(document: object) -> bool:
    level = [document]
    for _ in range(DEPTH_MOST + 1):
        inner = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
        ]
        level = [item for items in inner for item in items]
    return not level


# ---- YAML


def _read_yaml(text: str) -> tuple[object, Faults]:
    try:
        reader = _YamlReader(yaml.parse(text, Loader=_YAML_LOADER))
        document = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _place(mark) if mark else "document"
        _fail(place, f"not YAML: {error.problem or error.context or 'cannot be read'}")
    except yaml.YAMLError as error:
        _fail("document", f"not YAML: {str(error).splitlines()[0] if str(error) else 'cannot be read'}")
    return document, reader.faults


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


class _YamlReader:
    """Builds one document from the parser's events."""

    def __init__(self, events: Iterator[Any]) -> None:
        self.faults = Faults()
        self._events = events
        self._anchors: dict[str, tuple[object, int]] = {}
        self._expanded = 0

    def document(self) -> object:
        next(self._events)  # start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        document = self._node(next(self._events), 0)
        next(self._events)  # end of the document
        if not isinstance(further := next(self._events), yaml.StreamEndEvent):
            _fail(_place(further.start_mark), "a second document begins: a rule set is one document")
        return document

    def _node(self, event: Any, depth: int) -> object:
        if depth > DEPTH_MOST:
            _fail(_place(event.start_mark), f"nested deeper than {DEPTH_MOST} levels")
        before = self._expanded
        if isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                _fail(_place(event.start_mark), f"the alias {shown(event.anchor)} names nothing that is complete")
            self._grow(event, known[1])
            return known[0]
        if event.tag not in (None, "!"):
            self.faults.add(_place(event.start_mark), f"tags are not read: take out {shown(event.tag)}")
        value: object
        if isinstance(event, yaml.ScalarEvent):
            self._grow(event, 1 + len(event.value))
            value = self._scalar(event)
        else:
            self._grow(event, 1)
            mapping = isinstance(event, yaml.MappingStartEvent)
            value = self._mapping(depth) if mapping else self._sequence(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._expanded - before)
        return value

    def _grow(self, event: Any, by: int) -> None:
        self._expanded += by
        if self._expanded > EXPANDED_MOST:
            _fail(_place(event.start_mark), f"with its aliases written out longer than {EXPANDED_MOST:,}")

    def _sequence(self, depth: int) -> list[object]:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, object]:
        mapping: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            name = self._node(event, depth + 1)
            value = self._node(next(self._events), depth + 1)
            if not isinstance(name, str):
                self.faults.add(
                    _place(event.start_mark), f"a key must be text, not {shown(name)}: write it in quotes"
                )
            elif name in mapping:
                self.faults.add(_place(event.start_mark), f"the key {shown(name)} is given twice")
            else:
                mapping[name] = value
        return mapping

    def _scalar(self, event: Any) -> object:
        text: str = event.value
        if not event.implicit[0]:
            return text  # quoted, or a block of text
        if _NULL.fullmatch(text):
            return None
        if _BOOLEAN.fullmatch(text):
            return text[0] in "tT"
        number: int | float | None
        if _INTEGER.fullmatch(text):
            number = _exact_integer(text)
        elif _FLOAT.fullmatch(text):
            number = _exact_float(text)
        elif _AMBIGUOUS.fullmatch(text):
            self.faults.add(
                _place(event.start_mark),
                f"{shown(text)} without quotes is not the same to all readers of YAML:"
                " write text in quotes, true or false, or a plain decimal number",
            )
            return text
        else:
            return text
        if number is None:
            self.faults.add(_place(event.start_mark), f"{shown(text)} {_TOO_LONG}")
            return 0
        return number
