"""Where the one bucket of a key is whose rule says ``distribution: home``.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regional_limiter.model.share import SHARE_UNITS


@dataclass(frozen=True, slots=True)
class Homes:
    """Each key of the rule has one bucket, in one region, which the others ask.

    Without a ``region`` it is found by a hash of the key, in proportion to the bases; else it is ``region``, unless
    the value of ``attribute`` is in ``regions``.  ``allows_unreachable``: a check whose home does not answer is
    allowed, without any bound; else denied.
    """

    region: str = ""
    attribute: str = ""
    regions: Mapping[str, str] = field(default_factory=dict)
    allows_unreachable: bool = False

    def named(self) -> set[str]:
        """The regions that it names."""
        return {region for region in (self.region, *self.regions.values()) if region}

    def of(self, attributes: Mapping[str, str], key_hash: bytes, bases: Mapping[str, int]) -> str:
        """The region of a key: the same in every process that has the same rules."""
        if self.region:
            return self.regions.get(attributes.get(self.attribute, ""), self.region)
        return _by_hash(key_hash, bases)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The bucket is in another region, whose nodes answer at ``address``."""

    region: str
    address: str
    allows_unreachable: bool = False


def _by_hash(key_hash: bytes, bases: Mapping[str, int]) -> str:
    at = int.from_bytes(key_hash[4:]) % SHARE_UNITS
    for region in sorted(bases):
        at -= bases[region]
        if at < 0:
            return region
    raise ValueError("the bases sum to less than the whole")
