"""What a rehearsal costs a line, by its parts, and how its memory grows with the log.  Not a test.

    python -m tests.bench.rehearsal [--lines 200000]

A log of nginx with 50,000 clients, a few of which ask most, and 100,000 paths.  Processor time, all in one run; the
last column is what a million lines would take of one core.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from regional_limiter.rules import parse_document
from services.rehearsal.reading import LogReader
from services.rehearsal.rehearsal import Rehearsal

CLIENTS = 50_000
PATHS = ("/orders", "/items/{}", "/search?q={}", "/login", "/static/app.js")
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"
BUCKET = {"id": "bucket", "capacity": 20, "refill": "10/s"}
WINDOW = {
    "id": "orders",
    "match": {"resource": "POST /orders"},
    "algorithm": "fixed_window",
    "limit": 30,
    "window": 60,
}
SITE = {"id": "site", "match": {"resource": "GET /search*"}, "key": [], "algorithm": "sliding_window_counter",
        "limit": 1500, "window": 60}  # fmt: skip
SECONDS_MOST = 30.0


def log_lines(lines: int) -> Iterator[str]:
    random, at = Random(1), 1_764_500_000.0
    clients = [f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in range(CLIENTS)]
    weights = [1 / (n + 1) ** 0.9 for n in range(CLIENTS)]
    for client in random.choices(clients, weights, k=lines):
        at += random.expovariate(300)
        when = f"{datetime.fromtimestamp(at, UTC):%d/%b/%Y:%H:%M:%S} +0000"
        path = random.choice(PATHS).format(random.randrange(100_000))
        request = f"{random.choice(('GET', 'POST'))} {path} HTTP/1.1"
        yield f'{client} - - [{when}] "{request}" 200 {random.randrange(50_000)} "https://example.com/" "{AGENT}"\n'


def rehearsed(file: Path, rules: list[dict[str, Any]], *, decide: bool = True) -> float:
    """Seconds of one core; without ``decide`` of reading and ordering alone."""
    rehearsal = Rehearsal(parse_document({"rules": rules}))
    began = process_time()
    reader = LogReader([str(file)], None, {})
    requests = reader.requests(reader.reading(rehearsal.names))
    if decide:
        rehearsal.run(requests)
    else:
        for _ in requests:
            pass
    return process_time() - began


def peak_mib(file: Path) -> float:
    tracemalloc.start()
    try:
        rehearsed(file, [BUCKET])
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200_000)
    lines = parser.parse_args().lines
    gc.set_threshold(100_000)  # as the command does
    with TemporaryDirectory() as directory:
        file, short = Path(directory) / "access.log", Path(directory) / "short.log"
        text = list(log_lines(lines))
        file.write_text("".join(text))
        short.write_text("".join(text[: lines // 4]))
        del text
        parts = {
            "reading alone": rehearsed(file, [BUCKET], decide=False),
            "one bucket": rehearsed(file, [BUCKET]),
            "one window": rehearsed(file, [{**WINDOW, "match": {}}]),
            "bucket, window, site": rehearsed(file, [BUCKET, WINDOW, SITE]),
        }
        print(f"{'':<24}{'us a line':>12}{'ratio':>8}{'s a million':>14}")
        for name, seconds in parts.items():
            million_s = seconds / lines * 1e6
            ratio = seconds / parts["one bucket"]
            print(f"{name:<24}{million_s:>12.1f}{ratio:>8.2f}{million_s:>14.1f}")
        ok = parts["one bucket"] / lines * 1e6 <= SECONDS_MOST
        print(f"a million lines of one bucket within {SECONDS_MOST:g} s: {'ok' if ok else 'ABOVE'}")
        quarter_mib, whole_mib = peak_mib(short), peak_mib(file)
        print(f"memory at most: {quarter_mib:.0f} MiB for a quarter of the log, {whole_mib:.0f} MiB for all of it")


if __name__ == "__main__":
    main()
