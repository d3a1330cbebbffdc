"""The packed state of a token bucket: one short string.  Pure.

Redis rounds a value up to 12, 28 or 44 bytes, so every byte is chosen: a usual bucket takes 12 at most.

``head`` 1 byte, ``time`` 5, ``capacity``, ``period``, ``level``, then by layout ``share`` 2, ``rebased`` 5.
All little-endian.

head      bits 7-6 layout, 5-4 size of capacity (1, 2, 3, 6 bytes), 3-2 of period (1, 2, 3, 5), 1-0 of level
          (2, 3, 4, 7).  Layout 1: whole limit, level in 1/period_ms tokens.  Layout 2: with ``share``, level in
          1/(period_ms x 10,000) tokens.  Layout 3: as 2 and with ``rebased``.  Any other head is another version.
time      milliseconds of the store's clock at which ``level`` held, modulo 2^40 (read as the nearest to now).
capacity  of the whole rule, and ``period`` in ms: the numbers that ``level`` was computed with.
level     signed: below zero after charges that were decided elsewhere, or when the rule was lowered.
share     that was in force, out of 10,000.
rebased   when a large step back of the clock was last accepted, modulo 2^40.

Two conversions, both made when a bucket is read, never in place:
- the rule's numbers changed (:func:`converted`): what was used stays used; the level follows the capacity.
- the share changed: ``token_bucket`` clips and accrues (it needs the history of the share).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from regional_limiter.model.share import SHARE_UNITS, region_capacity

_TIME_MODULUS = 2**40
_CAPACITY_SIZES = (1, 2, 3, 6)
_PERIOD_SIZES = (1, 2, 3, 5)
_LEVEL_SIZES = (2, 3, 4, 7)

WHOLE, SHARED, REBASED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Bucket:
    """``level`` counts 1/(period_ms x 10,000) tokens and held at ``time_ms``."""

    time_ms: int
    level: int
    capacity: int
    period_ms: int
    share: int = SHARE_UNITS
    rebased_ms: int | None = None


def pack(bucket: Bucket) -> bytes:
    level = bucket.level
    layout = SHARED if bucket.rebased_ms is None else REBASED
    if layout == SHARED and bucket.share == SHARE_UNITS and level % SHARE_UNITS == 0:
        layout, level = WHOLE, level // SHARE_UNITS
    by_capacity = _size_index(bucket.capacity, 8, _CAPACITY_SIZES)
    by_period = _size_index(bucket.period_ms, 8, _PERIOD_SIZES)
    by_level = _size_index(level if level >= 0 else -level - 1, 7, _LEVEL_SIZES)
    packed = bytes((layout << 6 | by_capacity << 4 | by_period << 2 | by_level,))
    packed += (bucket.time_ms % _TIME_MODULUS).to_bytes(5, "little")
    packed += bucket.capacity.to_bytes(_CAPACITY_SIZES[by_capacity], "little")
    packed += bucket.period_ms.to_bytes(_PERIOD_SIZES[by_period], "little")
    packed += level.to_bytes(_LEVEL_SIZES[by_level], "little", signed=True)
    if layout >= SHARED:
        packed += bucket.share.to_bytes(2, "little")
    if bucket.rebased_ms is not None:
        packed += (bucket.rebased_ms % _TIME_MODULUS).to_bytes(5, "little")
    return packed


def unpack(packed: bytes, now_ms: int) -> Bucket | None:
    """None: written by a version that this one cannot read."""
    layout = packed[0] >> 6
    sizes = (5, _CAPACITY_SIZES[packed[0] >> 4 & 3], _PERIOD_SIZES[packed[0] >> 2 & 3], _LEVEL_SIZES[packed[0] & 3])
    tail = {WHOLE: 0, SHARED: 2, REBASED: 7}.get(layout)
    if tail is None or len(packed) != 1 + sum(sizes) + tail:
        return None
    fields, at = [], 1
    for size in (*sizes, *(2, 5)[: layout - 1]):
        fields.append(packed[at : at + size])
        at += size
    level = int.from_bytes(fields[3], "little", signed=True)
    return Bucket(
        time_ms=_nearest(int.from_bytes(fields[0], "little"), now_ms),
        level=level * SHARE_UNITS if layout == WHOLE else level,
        capacity=int.from_bytes(fields[1], "little"),
        period_ms=int.from_bytes(fields[2], "little"),
        share=SHARE_UNITS if layout == WHOLE else int.from_bytes(fields[4], "little"),
        rebased_ms=_nearest(int.from_bytes(fields[5], "little"), now_ms) if layout == REBASED else None,
    )


def converted(bucket: Bucket, capacity: int, period_ms: int, regions: int) -> Bucket:
    """The same bucket under other numbers of its rule: what was used stays used, rounded up.

    The fraction of a token goes through ten-thousandths, so that no product passes 2^53.
    """
    if bucket.capacity == capacity and bucket.period_ms == period_ms:
        return bucket
    unit, new_unit = bucket.period_ms * SHARE_UNITS, period_ms * SHARE_UNITS
    used = region_capacity(bucket.capacity, bucket.share, regions) * unit - bucket.level
    if bucket.period_ms != period_ms:
        tokens, fraction = divmod(used, unit)
        used = tokens * new_unit + -(-fraction // bucket.period_ms) * period_ms
    level = region_capacity(capacity, bucket.share, regions) * new_unit - used
    level = max(level, -capacity * new_unit)
    return replace(bucket, level=level, capacity=capacity, period_ms=period_ms)


def _size_index(value: int, bits_a_byte: int, sizes: tuple[int, ...]) -> int:
    # A signed field keeps one bit for the sign: 2 bytes hold 15 bits.
    for index, size in enumerate(sizes[:-1]):
        if value < 1 << (8 * size - (8 - bits_a_byte)):
            return index
    return len(sizes) - 1


def _nearest(stored: int, now_ms: int) -> int:
    behind = (now_ms - stored) % _TIME_MODULUS
    return now_ms - (behind if behind < _TIME_MODULUS // 2 else behind - _TIME_MODULUS)
