"""What a check of each kind costs a Redis server, as ratios to a token bucket's in one run.  Not a test.

    python -m tests.bench.kinds [--rounds 100]

Starts its own server.  The kinds take turns in small batches, and the best batch of each counts, so that whatever
else the machine does falls on all of them alike.  Also shows the bytes of a live key.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import time_ns

from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, Sharing
from regional_limiter.store.library import build_library, encode_check
from tests.contract.redis_server import RedisServer

BATCH = 200
RATE = Rate(1, 1000)
MONTH = CalendarWindow(CalendarUnit.MONTH, "Europe/Berlin")


def calls() -> dict[str, BucketCall]:
    def call(name: str, algorithm: Algorithm, refill: Rate | None = None, **more: object) -> BucketCall:
        window_ms = None if refill or "calendar" in more else 60_000
        key = f"rl:{{AbCdEfGh}}:default/{name}:user%3A42"
        return BucketCall(key, algorithm, 1_000_000, refill, window_ms, 1, **more)  # type: ignore[arg-type]

    lent = {"sharing": Sharing.ADAPTIVE, "regions": 3, "domain": "default", "base": 3333}
    return {
        "token_bucket": call("token", Algorithm.TOKEN_BUCKET, RATE),
        "token_bucket, adaptive": call("lent", Algorithm.TOKEN_BUCKET, RATE, **lent),
        "gcra": call("gcra", Algorithm.GCRA, RATE),
        "leaky_bucket, queue": call("queue", Algorithm.LEAKY_BUCKET, RATE, queue=True),
        "fixed_window": call("window", Algorithm.FIXED_WINDOW),
        "fixed_window, calendar": call("month", Algorithm.FIXED_WINDOW, calendar=MONTH),
    }


def compare(server: RedisServer, rounds: int) -> None:
    library = build_library(ProtocolTimes())
    server.load(library)
    client = server.client
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, call in calls().items():
            keys, arguments = encode_check([call], None, time_ns() // 1_000_000)
            client.config_resetstat()
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH):
                pipeline.fcall(library.functions["check"], len(keys), *keys, *arguments)
            pipeline.execute()
            spent = client.info("commandstats")["cmdstat_fcall"]
            best[name] = min(best.get(name, float("inf")), spent["usec"] / spent["calls"])
    print(f"{'kind':<24}{'us a check':>12}{'ratio':>8}{'bytes a key':>13}")
    for name, call in calls().items():
        (key,) = client.scan_iter(match=f"{call.key}*")
        print(
            f"{name:<24}{best[name]:>12.2f}{best[name] / best['token_bucket']:>8.2f}{client.memory_usage(key):>13}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as server:
        compare(server, arguments.rounds)


if __name__ == "__main__":
    main()
