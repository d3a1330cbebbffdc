"""What many keys take in one Redis, and that nothing of them is left after their time.  Not a test.

    python -m tests.bench.scale [--keys 1000000] [--kinds gcra]

Starts its own server.  Every key is another client's bucket, met by one check through the function library, as a
node would: a token bucket and a GCRA of the same numbers, one kind after the other.  The bytes of a key are the
growth of ``used_memory`` over the number of keys, which holds the tables of Redis as well; MEMORY USAGE of one key
says what it takes by itself.  All gone: every key has ended by itself, and less than a hundredth of the growth is
left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep, time_ns

from regional_limiter.algorithms.bucket_state import DIVISORS_OF_A_DAY
from regional_limiter.model.keys import bucket_key
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from regional_limiter.store.base import BucketCall
from regional_limiter.store.library import Library, build_library, encode_check
from tests.contract.redis_server import RedisServer

KINDS = (Algorithm.TOKEN_BUCKET, Algorithm.GCRA)
CAPACITY = 100
COST = 10
BATCH = 1000
SECRET = b"0123456789abcdef"
GONE_WITHIN_S = 300


def keys_of(kind: Algorithm, count: int) -> list[str]:
    """The keys that the planner makes, of clients that are told apart as user ids are."""
    rule = {"id": "per-client", "match": {}, "algorithm": kind.value, "capacity": CAPACITY, "refill": "1/s"}
    (parsed,) = parse_document({"rules": [rule]}).rules
    return [bucket_key(parsed, {"client_key": f"user:{number}"}, SECRET) for number in range(count)]


def fill(server: RedisServer, library: Library, kind: Algorithm, keys: list[str], refill: Rate) -> None:
    for start in range(0, len(keys), BATCH):
        pipeline = server.client.pipeline(transaction=False)
        for key in keys[start : start + BATCH]:
            call = BucketCall(key, kind, CAPACITY, refill, None, COST)
            named, arguments = encode_check([call], None, time_ns() // 1_000_000)
            pipeline.fcall(library.functions["check"], len(named), *named, *arguments)
        pipeline.execute()


def used_bytes(server: RedisServer) -> int:
    return int(server.client.info("memory")["used_memory"])


def measure(server: RedisServer, library: Library, kind: Algorithm, count: int) -> bool:
    keys = keys_of(kind, count)
    # Full again only after every key is there and has been looked at: 0.2 ms a key, and a minute.  A part of a day,
    # as the periods of usual rates are: GCRA keeps others in more bytes.
    life_ms = next(part for part in DIVISORS_OF_A_DAY if part >= 60_000 + count // 5)
    refill = Rate(COST, life_ms)
    # The tables of Redis and of the library grow with the first calls.
    fill(server, library, kind, keys[:1], refill)
    server.client.flushall()
    before = used_bytes(server)
    began = monotonic()
    fill(server, library, kind, keys, refill)
    filled_s, held = monotonic() - began, server.client.dbsize()
    taken = used_bytes(server) - before
    alone = server.client.memory_usage(keys[0])
    # What is counted must be there: a machine too slow for the life of its keys says nothing.
    whole = held == count
    # Redis makes its tables smaller after the keys are gone, a part at a time.
    ends = monotonic() + life_ms / 1000 + GONE_WITHIN_S
    while (server.client.dbsize() or used_bytes(server) - before > taken / 100) and monotonic() < ends:
        sleep(0.5)
    gone_s, left = monotonic() - began, server.client.dbsize()
    kept = used_bytes(server) - before
    print(
        f"{kind.value:<14}{count:>11,}{taken / count:>13.1f}{alone:>14}{filled_s:>10.0f}{gone_s:>10.0f}"
        f"{left:>10,}{kept / count:>13.1f}",
        flush=True,
    )
    return whole and left == 0 and kept < taken / 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=[kind.value for kind in KINDS], default=list(KINDS))
    given = parser.parse_args()
    print(
        f"{'kind':<14}{'keys':>11}{'bytes a key':>13}{'of it alone':>14}{'filled s':>10}{'gone s':>10}"
        f"{'keys left':>10}{'bytes a key':>13}"
    )
    library = build_library(ProtocolTimes())
    well = True
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as server:
        server.load(library)
        for kind in given.kinds:
            well &= measure(server, library, Algorithm(kind), given.keys)
    if not well:
        print("some keys had ended before they were counted, or something was left", file=sys.stderr)
    return not well


if __name__ == "__main__":
    sys.exit(main())
