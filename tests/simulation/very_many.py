"""Very many seeds, over many sittings: what has been run, at which commit, is kept in a file."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from . import runs

SAVE_EVERY_S = 5
SYSTEM_EACH = 100
"""One seed of the whole system for so many of the shares alone."""
UNKNOWN = "unknown"


@dataclass(slots=True)
class Kept:
    """``done``: jobs by (kind, first seed).  ``wrong``: (kind, seed, what).  ``ran``: commit -> kind -> seeds."""

    seeds: int
    events: int
    done: list[tuple[str, int]] = field(default_factory=list)
    wrong: list[tuple[str, int, str]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    ran: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, seeds: int, events: int) -> Kept:
        """What ``path`` keeps, if it is of so many seeds and events; else nothing yet."""
        document = json.loads(path.read_text()) if path.exists() else {}
        if (document.get("seeds"), document.get("events")) != (seeds, events):
            return cls(seeds, events)
        kept = cls(**document)
        kept.done = [(kind, first) for kind, first in kept.done]
        kept.wrong = [(kind, seed, what) for kind, seed, what in kept.wrong]
        kept._ascribe_the_rest()
        return kept

    def _ascribe_the_rest(self) -> None:
        """What was done before it was kept which commit ran it counts as an unknown one's."""
        done: Counter[str] = Counter()
        known = set(self.done)
        for job in _work(self.seeds, self.events):
            if (job.kind, job.first) in known:
                done[job.kind] += job.end - job.first
        rest = {kind: count - self.total(kind) for kind, count in done.items() if count > self.total(kind)}
        if rest:
            self.ran[UNKNOWN] = dict(Counter(self.ran.get(UNKNOWN, {})) + Counter(rest))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(asdict(self)))
        whole.replace(path)

    def take(self, done: runs.Done, commit: str) -> None:
        job = done.job
        self.done.append((job.kind, job.first))
        self.wrong += [(job.kind, seed, what) for seed, what in done.wrong.items()]
        self.counted = dict(Counter(self.counted) + done.counted)
        of_commit = self.ran.setdefault(commit, {})
        of_commit[job.kind] = of_commit.get(job.kind, 0) + job.end - job.first

    def total(self, kind: str) -> int:
        return sum(of_commit.get(kind, 0) for of_commit in self.ran.values())


def _work(seeds: int, events: int) -> Iterator[runs.Job]:
    yield from runs.jobs("shares", 0, seeds, events=events)
    yield from runs.jobs("system", 0, seeds // SYSTEM_EACH)


def commit_here() -> str:
    """The commit of this tree, with a + where something in it has been changed since."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        return head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def run_long(options: argparse.Namespace) -> int:
    """Run what is left of the seeds, until the time is up or somebody ends it."""
    kept, commit = Kept.read(options.state, options.seeds, options.events), commit_here()
    known = set(kept.done)
    left = [job for job in _work(options.seeds, options.events) if (job.kind, job.first) not in known]
    # Both kinds from the beginning on, so that a run that is ended has seen both.
    left.sort(key=lambda job: job.first * (SYSTEM_EACH if job.kind == "system" else 1))
    progress = runs.Progress(sum(job.end - job.first for job in left))
    began_s = saved_s = time.monotonic()
    with _ended_by_signals() as ended:
        results = runs.do_all(left, options.processes)
        for done in results:
            progress.add(done.job.end - done.job.first, len(done.wrong))
            kept.take(done, commit)
            now_s = time.monotonic()
            if now_s - saved_s > SAVE_EVERY_S:
                saved_s = now_s
                kept.write(options.state)
            if ended() or (options.minutes and now_s - began_s > 60 * options.minutes):
                results.close()
                break
    progress.end()
    kept.write(options.state)
    print("\n".join(_told(kept)))
    return 1 if kept.wrong else 0


def _told(kept: Kept) -> Iterator[str]:
    for kind, seed, what in kept.wrong:
        yield f"BAD {kind} seed {seed}: {what}"
    for commit, by_kind in kept.ran.items():
        yield f"at {commit}: {by_kind.get('shares', 0)} seeds of shares, {by_kind.get('system', 0)} of the system"
    shares, system = kept.total("shares"), kept.total("system")
    yield f"{shares} of {kept.seeds} seeds of shares and {system} of the system, {len(kept.wrong)} bad"


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end it after the seeds that are under way: no worker is left behind, nothing is lost."""
    said: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        said.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(said)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
