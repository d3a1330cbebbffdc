"""Which region a request of a log comes from: by a field, or by weights.  Pure.

Without a field each client has one region, found by a hash of its name, as many clients in each as its weight says;
or each request comes from a region of its own, as a client's do that is in several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from itertools import accumulate
from random import Random

CLIENT = "client_key"
UNPLACED_MOST = 100


class Placing:
    """``weights``: by region, in the order of their places; above 0 in sum.

    ``field``: the attribute that names the region; ``names``: what else it may say -> region.  A request whose
    field is missing or says something else goes by weight, and is counted in ``unplaced`` by what it said.
    ``each``: by chance (of ``seed``) for each request instead of by client.
    """

    def __init__(
        self,
        weights: Mapping[str, int],
        *,
        field: str | None = None,
        names: Mapping[str, str] | None = None,
        each: bool = False,
        seed: int = 1,
    ) -> None:
        self._places = {name: place for place, name in enumerate(weights)}
        self._field = field
        self._named = {text: self._places[region] for text, region in (names or {}).items()}
        self._ends = list(accumulate(weights.values()))
        self._random = Random(seed) if each else None
        self.unplaced: Counter[str] = Counter()

    @property
    def attributes(self) -> set[str]:
        """Those that it looks at."""
        return {CLIENT} | ({self._field} if self._field is not None else set())

    def place(self, attributes: Mapping[str, str]) -> int:
        """The place of the region."""
        if self._field is not None:
            said = attributes.get(self._field)
            if said in self._named:
                return self._named[said]
            if said in self._places:
                return self._places[said]
            known = said is not None and (said in self.unplaced or len(self.unplaced) < UNPLACED_MOST)
            self.unplaced[said if said is not None and known else ""] += 1
        if self._random is not None:
            return self._by_weight(self._random.randrange(self._ends[-1]))
        digest = blake2b(
            attributes.get(CLIENT, "").encode(errors="replace"), digest_size=8, person=b"placing"
        ).digest()
        return self._by_weight(int.from_bytes(digest) % self._ends[-1])

    def _by_weight(self, number: int) -> int:
        return next(place for place, end in enumerate(self._ends) if number < end)
