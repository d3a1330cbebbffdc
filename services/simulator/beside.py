"""One key's requests as other ways to split its limit would have decided them.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.simulator.baselines import MODELS, SECOND, Ideal, Limit, Model, StaticSplit
from services.simulator.log_counts import Key
from services.simulator.measure import Counts

STEP_US = 5_000


@dataclass(frozen=True, slots=True)
class Way:
    """How one way did: tokens admitted, of those that one place would admit; requests denied that it would allow;
    tokens above the limit in the worst interval."""

    name: str
    utilisation: float
    false_rejects: float
    excess: float


def other_ways(
    key: Key, delays_ms: Sequence[int], bases: Sequence[int], cuts: Sequence[tuple[float, Sequence[int], bool]] = ()
) -> list[Way]:
    """The regions first, then each model.  ``cuts``: (seconds, places, whether they are cut from then on).

    Nothing of a window: the models are of rates.
    """
    call = key.call
    if call.refill is None:
        return []
    rate = call.refill.tokens * 1000 / call.refill.period_ms
    limit = Limit(rate, call.capacity, [1000 * delay for delay in delays_ms], bases)
    ideal = Ideal(limit)
    models: list[Model] = [StaticSplit(limit), *(model(limit) for model in MODELS if model is not StaticSplit)]
    counts = [Counts(rate, call.capacity, by_region=[0] * len(delays_ms)) for _ in (None, *models)]
    ideal_tokens = 0
    tokens = [0] * len(counts)
    now_us, left = 0, sorted(cuts, key=lambda cut: cut[0])
    for at_us, place, cost, allowed in key.arrivals():
        while now_us <= at_us:
            while left and left[0][0] * SECOND <= now_us:
                _, places, is_cut = left.pop(0)
                for model in models:
                    for cut in places:
                        model.cut(cut, is_cut)
            for model in models:
                model.step(now_us)
            now_us += STEP_US
        passes = ideal.check(place, at_us, cost)
        ideal_tokens += cost * passes
        for number, passed in enumerate([allowed, *(model.check(place, at_us, cost) for model in models)]):
            counts[number].tick(at_us / SECOND)
            counts[number].count(place, passed, True, passes, cost)
            tokens[number] += cost * passed
    names = ["apportion", *(model.name for model in models)]
    # What was admitted beside other rules is known to the checker alone.
    excess = [max(0.0, key.excess), *(one.excess for one in counts[1:])]
    return [
        Way(name, used / ideal_tokens if ideal_tokens else 1.0, one.false_rejects, over)
        for name, one, used, over in zip(names, counts, tokens, excess, strict=True)
    ]
