"""Which faults, where and for how long: all of it out of one seed.  Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

REGIONS = ("us-east", "eu-west", "ap-south")
SERVERS_EACH = 3
"""Shards of a region; a fault of a server names one of them."""
NODES_EACH = 2


@dataclass(frozen=True)
class Kind:
    """How often it is drawn (``weight``), and how long it lasts: one of ``seconds``, in a system at full scale
    ``scaled`` by the share protocol's times.  ``amounts``: how much, in the kind's own unit."""

    weight: int
    seconds: tuple[float, ...]
    amounts: tuple[float, ...] = (0.0,)
    scaled: bool = False


KINDS = {
    "cut a link": Kind(3, (4.0, 35.0, 50.0), scaled=True),
    "let a link only speak": Kind(2, (4.0, 35.0, 50.0), scaled=True),
    "let a link only hear": Kind(2, (4.0, 35.0, 50.0), scaled=True),
    "lossy link": Kind(2, (6.0, 10.0), amounts=(5, 20, 40)),
    "slow link": Kind(2, (6.0, 10.0), amounts=(48, 96, 256)),
    "pause the broker": Kind(2, (2.0, 30.0, 45.0), scaled=True),
    "kill the broker": Kind(2, (1.0, 30.0), scaled=True),
    "pause a primary": Kind(3, (0.3, 1.2, 6.0)),
    "kill a primary": Kind(3, (6.0,)),
    "promote a replica": Kind(2, (3.0,)),
    "kill every replica": Kind(1, (4.0,)),
    "keep a node from a shard": Kind(2, (2.0, 8.0)),
    "cut a region in two": Kind(2, (1.0, 6.0, 15.0)),
    "pause a sync service": Kind(3, (2.0, 25.0, 45.0), scaled=True),
    "pause the leader": Kind(3, (2.0, 25.0, 45.0), scaled=True),
    "kill a sync service": Kind(2, (1.0, 30.0), scaled=True),
    "kill the leader": Kind(3, (1.0, 30.0), scaled=True),
    "kill a node": Kind(2, (3.0,)),
    "pause a node": Kind(2, (0.5, 3.0)),
    "step a clock": Kind(3, (4.0, 8.0), amounts=(-30, -3, -0.8, -0.1, 0.1, 0.8, 3, 30)),
    "fill a region's disk": Kind(2, (5.0, 10.0)),
    "fill the broker's disk": Kind(1, (6.0,)),
    "fill a server's memory": Kind(2, (3.0, 8.0)),
}


@dataclass(frozen=True)
class Fault:
    """One fault.  ``after_s``: seconds after its round began; ``place``: which server or node of the region."""

    kind: str
    region: str
    after_s: float
    seconds: float
    place: int = 0
    amount: float = 0.0


Round = tuple[Fault, ...]


def rounds(seed: int, time_scale: float, kinds: Sequence[str] = tuple(KINDS)) -> Iterator[Round]:
    """Without end: one fault a round, two in every third, together."""
    chance = random.Random(seed)
    while True:
        number = 2 if chance.random() < 1 / 3 else 1
        yield tuple(_fault(chance, time_scale, kinds) for _ in range(number))


def _fault(chance: random.Random, time_scale: float, kinds: Sequence[str]) -> Fault:
    name = chance.choices(kinds, [KINDS[kind].weight for kind in kinds])[0]
    kind = KINDS[name]
    seconds = chance.choice(kind.seconds) * (time_scale if kind.scaled else 1)
    return Fault(
        name,
        chance.choice(REGIONS),
        round(chance.uniform(0.2, 2.0), 2),
        round(max(1.0, seconds) if kind.scaled else seconds, 2),
        chance.randrange(SERVERS_EACH),
        chance.choice(kind.amounts),
    )


def written(schedule: Sequence[Round]) -> str:
    return "[\n" + ",\n".join("  " + json.dumps([asdict(fault) for fault in one]) for one in schedule) + "\n]\n"


def read(text: str) -> list[Round]:
    """Raises ValueError, TypeError: not what ``written`` wrote."""
    found = [tuple(Fault(**fault) for fault in one) for one in json.loads(text)]
    for fault in (fault for one in found for fault in one):
        if fault.kind not in KINDS or fault.region not in REGIONS:
            raise ValueError(f"{fault}: kind must be one of {', '.join(KINDS)}, region of {', '.join(REGIONS)}")
    return found
