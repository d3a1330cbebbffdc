"""The text of an nginx configuration -> its directives.  Pure.

Nothing is included or evaluated; what the directives mean is none of this module's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from regional_limiter.model.errors import Fault, InvalidRules

BYTES_MOST = 2**21
DEPTH_MOST = 32
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)|(?P<line>\n)|(?P<comment>\#[^\n]*)|(?P<mark>[{};])
    |"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<word>(?:\$\{[^}\n]*\}|\\.|[^\s{};"'\\])(?:\$\{[^}\n]*\}|\\.|[^\s{};\\])*)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class Directive:
    """``inner``: of a block.  ``line``: from 1."""

    name: str
    arguments: tuple[str, ...]
    line: int
    inner: list[Directive] | None = None

    @property
    def place(self) -> str:
        return f"line {self.line}"

    def all(self, name: str) -> Iterator[Directive]:
        """The directives of that name directly inside."""
        return (one for one in self.inner or () if one.name == name)


@dataclass(slots=True)
class _Open:
    directive: Directive
    words: list[str] = field(default_factory=list)
    line: int = 0


def read_directives(text: str) -> Directive:
    """The whole file as one block.  Raises InvalidRules where it is no nginx configuration."""
    root = Directive("", (), 1, [])
    stack = [_Open(root)]
    line = 1
    for kind, token in _tokens(text):
        if kind == "line":
            line += 1
            continue
        top = stack[-1]
        if kind != "mark":
            if not top.words:
                top.line = line
            top.words.append(token)
            line += token.count("\n")
        elif token == "}":
            if len(stack) == 1 or top.words:
                raise _wrong(line, "a } too many" if not top.words else "a ; is missing before the }")
            stack.pop()
        elif not top.words:
            if token == "{":
                raise _wrong(line, "a block without a name")
        else:
            made = Directive(top.words[0], tuple(top.words[1:]), top.line, [] if token == "{" else None)
            assert top.directive.inner is not None
            top.directive.inner.append(made)
            top.words = []
            if token == "{":
                if len(stack) >= DEPTH_MOST:
                    raise _wrong(line, f"blocks inside of more than {DEPTH_MOST} others")
                stack.append(_Open(made))
    if len(stack) > 1 or stack[-1].words:
        raise _wrong(line, "the file ends inside of a block or a directive")
    return root


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _wrong(text.count("\n", 0, at) + 1, "a quote that does not end")
        at = found.end()
        kind = found.lastgroup or ""
        if kind not in ("space", "comment"):
            yield kind, found[kind]


def _wrong(line: int, problem: str) -> InvalidRules:
    return InvalidRules([Fault(f"line {line}", problem)])
