"""Which slots go where, so that each of the wanted primaries has its even part and as few as can be move.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from regional_limiter.store.topology import SLOTS


@dataclass(frozen=True, slots=True)
class SlotMove:
    """``slots`` go from the primary on port ``source`` to the one on port ``target``."""

    source: int
    target: int
    slots: tuple[int, ...]


def plan_moves(owned: Mapping[int, Iterable[int]], targets: Sequence[int]) -> list[SlotMove]:
    """``owned``: slots by port, all of them.  ``targets``: ports that are to own them."""
    own = {port: sorted(slots) for port, slots in owned.items()}
    parts = _parts({port: len(own.get(port, ())) for port in targets})
    spare = iter([(port, slot) for port, slots in sorted(own.items()) for slot in slots[parts.get(port, 0) :]])
    found: dict[tuple[int, int], list[int]] = {}
    for target in targets:
        for _ in range(parts[target] - len(own.get(target, ()))):
            source, slot = next(spare)
            found.setdefault((source, target), []).append(slot)
    return [SlotMove(source, target, tuple(slots)) for (source, target), slots in found.items()]


def _parts(owned: Mapping[int, int]) -> dict[int, int]:
    """How many slots each is to have: those that have most get what rounding leaves over."""
    each, over = divmod(SLOTS, len(owned))
    order = sorted(owned, key=lambda port: (-owned[port], port))
    return {port: each + (place < over) for place, port in enumerate(order)}


def choose_primaries(
    wanted: Sequence[int], serving: Iterable[int], replicas: Iterable[int], count: int
) -> list[int]:
    """The ports, out of ``wanted``, that are to be primaries: first those that serve, last those that replicate."""
    serves, follows = set(serving), set(replicas)
    order = sorted(wanted, key=lambda port: (port not in serves, port in follows, wanted.index(port)))
    return order[:count]
