"""The packed state of a token bucket: one short string.  Pure.

Redis rounds a value up to 12, 28 or 44 bytes, so every byte is chosen: a usual bucket takes 12 at most.

``head`` 1 byte, ``time`` 5, ``capacity``, ``period``, ``level``, then by layout ``share`` 2, ``rebased`` 5; or with
token leases out ``share`` 2, ``rebased`` 6, and twice ``edge`` 5 and ``tokens`` 6.  All little-endian.

head      bits 7-6 layout, 5-4 size of capacity (1, 2, 3, 6 bytes), 3-2 of period (1, 2, 3, 5), 1-0 of level
          (2, 3, 4, 7).  Layout 1: whole limit, level in 1/period_ms tokens.  Layout 2: with ``share``, level in
          1/(period_ms x 10,000) tokens.  Layout 3: as 2 and with ``rebased``.  Layout 0: as 2, ``rebased`` (+ 1;
          0 is never), and what is out, by edge (0 tokens: nothing).  Only hot keys have it: it need not be short.
          At most 19 digits and nothing else: a number (see below).
time      milliseconds of the store's clock at which ``level`` held, modulo 2^40 (read as the nearest to now).
capacity  of the whole rule, and ``period`` in ms: the numbers that ``level`` was computed with.
level     signed: below zero after charges that were decided elsewhere, or when the rule was lowered.
share     that was in force, out of 10,000.
rebased   when a large step back of the clock was last accepted, modulo 2^40.
edge      until when ``tokens`` of token leases are out (see ``tokens_out``), modulo 2^40.

A number: GCRA keeps the bucket of a whole limit as one integer of 64 bits in decimal digits, which Redis holds in
the pointer itself: 16 bytes less.  It is ``(used x 264 + index) x 10^9 + time``, where ``used`` counts
1/period_ms tokens, ``index`` is the period's place among the 264 divisors of a day in milliseconds (which the
periods of all usual rates are), and ``time`` is modulo 10^9 ms.  What is used does not depend on the capacity, so
none is kept.  Such a bucket lives for less than ten hours, so its time is read right unless a clock steps by days.
A bucket that does not fit has one of the other layouts, and every kind of bucket reads all of them.

Two conversions, both made when a bucket is read, never in place:
- the rule's numbers changed (:func:`converted`): what was used stays used; the level follows the capacity.
- the share changed: ``token_bucket`` clips and accrues (it needs the history of the share).
"""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.algorithms.tokens_out import EDGES_MOST, NONE_OUT, Out
from regional_limiter.model.share import SHARE_UNITS, region_capacity
from regional_limiter.model.value import value

_TIME_MODULUS = 2**40
_NUMBER_TIME_MODULUS = 10**9
_NUMBER_MOST = 2**63 - 1
_DIGITS_MOST = len(str(_NUMBER_MOST))
DIVISORS_OF_A_DAY = tuple(
    sorted(2**twos * 3**threes * 5**fives for twos in range(11) for threes in range(4) for fives in range(6))
)
_INDEX_OF_PERIOD = {period_ms: index for index, period_ms in enumerate(DIVISORS_OF_A_DAY)}
_CAPACITY_SIZES = (1, 2, 3, 6)
_PERIOD_SIZES = (1, 2, 3, 5)
_LEVEL_SIZES = (2, 3, 4, 7)


def _index_of_size(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """For each number of bytes, from 0 on, the place of the least of ``sizes`` that holds it."""
    return tuple(
        next(place for place, size in enumerate(sizes) if size >= needed) for needed in range(sizes[-1] + 1)
    )


_CAPACITY_INDEX, _PERIOD_INDEX, _LEVEL_INDEX = map(_index_of_size, (_CAPACITY_SIZES, _PERIOD_SIZES, _LEVEL_SIZES))

LEASED, WHOLE, SHARED, REBASED = 0, 1, 2, 3
_TAILS = {LEASED: (2, 6, *(5, 6) * EDGES_MOST), WHOLE: (), SHARED: (2,), REBASED: (2, 5)}


@value
class Bucket:
    """``level`` counts 1/(period_ms x 10,000) tokens and held at ``time_ms``; ``out`` tokens more are leased."""

    time_ms: int
    level: int
    capacity: int
    period_ms: int
    share: int = SHARE_UNITS
    rebased_ms: int | None = None
    out: Out = NONE_OUT


def pack(bucket: Bucket) -> bytes:
    level, rebased_ms = bucket.level, bucket.rebased_ms
    if bucket.out:
        layout = LEASED
    elif rebased_ms is not None:
        layout = REBASED
    elif bucket.share == SHARE_UNITS and level % SHARE_UNITS == 0:
        layout, level = WHOLE, level // SHARE_UNITS
    else:
        layout = SHARED
    by_capacity = _CAPACITY_INDEX[bucket.capacity.bit_length() + 7 >> 3]
    by_period = _PERIOD_INDEX[bucket.period_ms.bit_length() + 7 >> 3]
    by_level = _LEVEL_INDEX[(level if level >= 0 else ~level).bit_length() + 8 >> 3]  # one bit for the sign
    packed = bytes((layout << 6 | by_capacity << 4 | by_period << 2 | by_level,))
    packed += (bucket.time_ms % _TIME_MODULUS).to_bytes(5, "little")
    packed += bucket.capacity.to_bytes(_CAPACITY_SIZES[by_capacity], "little")
    packed += bucket.period_ms.to_bytes(_PERIOD_SIZES[by_period], "little")
    packed += level.to_bytes(_LEVEL_SIZES[by_level], "little", signed=True)
    tail = [bucket.share]
    if layout == REBASED and rebased_ms is not None:
        tail.append(rebased_ms % _TIME_MODULUS)
    elif layout == LEASED:
        tail.append(0 if rebased_ms is None else rebased_ms % _TIME_MODULUS + 1)
        for edge_ms, tokens in (*bucket.out, *((0, 0),) * (EDGES_MOST - len(bucket.out))):
            tail += (edge_ms % _TIME_MODULUS, tokens)
    for number, size in zip(tail, _TAILS[layout], strict=False):
        packed += number.to_bytes(size, "little")
    return packed


def pack_as_number(bucket: Bucket) -> bytes | None:
    """The bucket as one integer.  None: it does not fit."""
    index = _INDEX_OF_PERIOD.get(bucket.period_ms)
    used = bucket.capacity * bucket.period_ms * SHARE_UNITS - bucket.level
    if index is None or bucket.share != SHARE_UNITS or bucket.rebased_ms is not None or bucket.out:
        return None
    if used % SHARE_UNITS:
        return None
    high = used // SHARE_UNITS * len(DIVISORS_OF_A_DAY) + index
    number = high * _NUMBER_TIME_MODULUS + bucket.time_ms % _NUMBER_TIME_MODULUS
    return b"%d" % number if number <= _NUMBER_MOST else None


def _from_number(number: int, now_ms: int) -> Bucket:
    # As of a capacity of 0, so that the conversion to the rule's present one leaves what was used.
    high, time_ms = divmod(number, _NUMBER_TIME_MODULUS)
    used, index = divmod(high, len(DIVISORS_OF_A_DAY))
    time_ms = _nearest(time_ms, now_ms, _NUMBER_TIME_MODULUS)
    return Bucket(time_ms, -used * SHARE_UNITS, 0, DIVISORS_OF_A_DAY[index])


def unpack(packed: bytes, now_ms: int) -> Bucket | None:
    """None: written by a version that this one cannot read."""
    if len(packed) <= _DIGITS_MOST and packed.isdigit():
        return _from_number(int(packed), now_ms)
    layout = packed[0] >> 6
    sizes = (5, _CAPACITY_SIZES[packed[0] >> 4 & 3], _PERIOD_SIZES[packed[0] >> 2 & 3], _LEVEL_SIZES[packed[0] & 3])
    tail = _TAILS[layout]
    if len(packed) != 1 + sum(sizes) + sum(tail):
        return None
    fields, at = [], 1
    for size in (*sizes, *tail):
        fields.append(packed[at : at + size])
        at += size
    level = int.from_bytes(fields[3], "little", signed=True)
    more = [int.from_bytes(field, "little") for field in fields[4:]]
    out = NONE_OUT
    rebased_ms = None
    if layout == LEASED:
        rebased_ms = _nearest(more[1] - 1, now_ms) if more[1] else None
        edges = zip(more[2::2], more[3::2], strict=True)
        out = tuple((_nearest(edge_ms, now_ms), tokens) for edge_ms, tokens in edges if tokens)
    elif layout == REBASED:
        rebased_ms = _nearest(more[1], now_ms)
    return Bucket(
        time_ms=_nearest(int.from_bytes(fields[0], "little"), now_ms),
        level=level * SHARE_UNITS if layout == WHOLE else level,
        capacity=int.from_bytes(fields[1], "little"),
        period_ms=int.from_bytes(fields[2], "little"),
        share=SHARE_UNITS if layout == WHOLE else more[0],
        rebased_ms=rebased_ms,
        out=out,
    )


def converted(bucket: Bucket, capacity: int, period_ms: int, regions: int) -> Bucket:
    """The same bucket under other numbers of its rule: what was used stays used, rounded up.

    What is out was used when it was leased, and stays out.  The fraction of a token goes through ten-thousandths,
    so that no product passes 2^53.
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


def _nearest(stored: int, now_ms: int, modulus: int = _TIME_MODULUS) -> int:
    behind = (now_ms - stored) % modulus
    return now_ms - (behind if behind < modulus // 2 else behind - modulus)
