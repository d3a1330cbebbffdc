"""Finding which of many prefixes, or of many ranges, a value lies in, without comparing them all.  Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Generic, TypeVar

T = TypeVar("T")

Span = tuple[Decimal, Decimal]
"""From the first to the second, both included; infinite where there is no bound."""


class Prefixes(Generic[T]):
    """What is filed under the beginnings of texts.

    Of sorted texts, all that begin with p stand together and begin with p itself.  So every prefix of a value is
    the last text that is not after the value, or a prefix of that one: one search, then up the chain of prefixes.
    """

    __slots__ = ("_outer", "_texts", "_things")

    def __init__(self, things: Mapping[str, T]) -> None:
        self._texts = sorted(things)
        self._things = [things[text] for text in self._texts]
        self._outer: list[int] = []
        """The place of the longest other text that is a prefix of this one; -1: none."""
        for place, text in enumerate(self._texts):
            outer = place - 1
            while outer >= 0 and not text.startswith(self._texts[outer]):
                outer = self._outer[outer]
            self._outer.append(outer)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def of(self, value: str) -> Iterator[T]:
        """What is filed under each prefix of ``value``, the longest first."""
        place = bisect_right(self._texts, value) - 1
        while place >= 0:
            if value.startswith(self._texts[place]):
                yield self._things[place]
            place = self._outer[place]

    def holds(self, value: str) -> bool:
        """Whether any of the texts is a prefix of ``value``."""
        return next(self.of(value), None) is not None


class Ranges(Generic[T]):
    """What is filed under ranges of numbers: those around a centre here, the others to its left or right."""

    __slots__ = ("_by_high", "_by_low", "_centre", "_left", "_right")

    def __init__(self, things: Iterable[tuple[Span, T]]) -> None:
        items = list(things)
        ends = sorted(end for span, _ in items for end in span)
        self._centre = centre = ends[len(ends) // 2]
        here = [(span, thing) for span, thing in items if span[0] <= centre <= span[1]]
        self._by_low = sorted(((span[0], thing) for span, thing in here), key=lambda item: item[0])
        self._by_high = sorted(((span[1], thing) for span, thing in here), key=lambda item: item[0], reverse=True)
        left = [item for item in items if item[0][1] < centre]
        right = [item for item in items if item[0][0] > centre]
        self._left: Ranges[T] | None = Ranges(left) if left else None
        self._right: Ranges[T] | None = Ranges(right) if right else None

    def of(self, number: Decimal) -> Iterator[T]:
        """What is filed under each range that ``number`` lies in."""
        node: Ranges[T] | None = self
        while node is not None:
            if number <= node._centre:
                for low, thing in node._by_low:
                    if low > number:
                        break
                    yield thing
                node = node._left
            else:
                for high, thing in node._by_high:
                    if high < number:
                        break
                    yield thing
                node = node._right
