"""A soak: minutes of traffic with faults at random on a real local system, and what must hold through all of it.

python -m tests.e2e.soak [--minutes 5] [--seed 1] [--base-port 13000]

Every ten seconds another offered rate in every region and one fault: a cut link, a stopped or killed process, a
failover, a pause.  Then it is mended and the next one comes.  It ends with exit code 1 unless

- no check went without an answer, but for those sent to a process that was stopped or killed;
- the admitted checks of the global rule keep to its bound, with what docs/semantics.md lets silent shards add;
- every key in every Redis has an end, and none is left a while after the traffic (but the agents' locks);
- no process holds twice the memory that it held after the first minute;
- what the nodes counted, by rule and region, and what the buckets were charged, by key, is what a log of every
  answer says, but for what was lost with a killed process (see ``answers.py``);
- in the end all regions are in session and the hot one gets its limit again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from services.cli.drive import CheckRecord, drive
from tests.chaos.judge import Excuse, Limit, worst_excess
from tests.e2e.answers import Answers, Kill
from tests.e2e.bound import rate_between
from tests.e2e.system import REGIONS, LocalSystem, local_system

RULES = Path(__file__).with_name("soak_rules.yaml")
KEYS = 4
"""Of the counted rule, one a round, so that each shard has some."""
ROUND_S = 10.0
LIMIT = Limit(20, 100)
PROMOTED_S = 7.0
"""Until a replica has surely taken over."""
FAULTS = (
    *("nothing", "cut", "slow", "stop a primary", "stop a node", "stop a sync service"),
    *("kill a primary", "kill a replica", "kill a node", "kill a sync service", "pause a primary"),
)


@dataclass
class Ledger:
    """What happened.  ``silent``: when shards were, or lost charges: both may add to the bound for so long."""

    answers: Answers
    checks: dict[str, list[CheckRecord]] = field(default_factory=lambda: {region: [] for region in REGIONS})
    excused: list[tuple[float, float]] = field(default_factory=list)
    silent: list[Excuse] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base-port", type=int, default=13000)
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "apportion-soak.jsonl")
    options = parser.parse_args()
    options.log.unlink(missing_ok=True)
    chance, ledger = random.Random(options.seed), Ledger(Answers(options.log))
    with (
        tempfile.TemporaryDirectory() as directory,
        local_system(Path(directory), options.base_port, 1 / 3) as system,
    ):
        rounds = max(7, round(options.minutes * 60 / ROUND_S))
        first_rss: dict[str, int] = {}
        await asyncio.to_thread(mend, system)
        for number in range(rounds):
            fault = chance.choice(FAULTS)
            began = time.monotonic()
            await asyncio.gather(traffic(system, chance, ledger, number), strike(system, chance, ledger, fault))
            await asyncio.to_thread(mend, system)
            if number == 5:
                first_rss = memory(system)
            ledger.problems += keys_without_an_end(system)
            print(f"{number + 1}/{rounds} {fault}: {told(ledger, began)}", flush=True)
        await end(system, ledger, first_rss)
    admitted = [
        (check.sent_at, check.answered_at) for checks in ledger.checks.values() for check in checks if check.allowed
    ]
    excess, (start, stop) = worst_excess(admitted, LIMIT, ledger.silent)
    print(f"{len(admitted)} admitted, excess {excess:.1f} ({len(ledger.silent)} times a shard was silent)")
    if excess > 0:
        ledger.problems.append(f"{excess:.1f} checks above the bound in {start:.3f} to {stop:.3f}")
    for problem in ledger.problems:
        print("WRONG", problem)
    return 1 if ledger.problems else 0


def mend(system: LocalSystem) -> None:
    """Start what is not there, with the rules of this file."""
    system.cli("up", "--detach", "--no-traffic", "--no-stand-in", "--rules", str(RULES))


async def traffic(system: LocalSystem, chance: random.Random, ledger: Ledger, number: int) -> None:
    rates = {region: chance.choice((5, 20, 60, 120)) for region in REGIONS}
    key = f"key-{number % KEYS}"
    shared = [
        drive(system.nodes(region), rate, ROUND_S, client_key="soak", resource="GET /shared", concurrency=16)
        for region, rate in rates.items()
    ]
    counted = [
        drive(
            system.nodes(region),
            chance.choice((10, 30)),
            ROUND_S,
            client_key=key,
            resource="POST /counted",
            cost=chance.choice((1, 2, 7)),
            concurrency=8,
        )
        for region in REGIONS
    ]
    results = await asyncio.gather(*shared, *counted)
    for place, (region, result) in enumerate(zip((*REGIONS, *REGIONS), results, strict=True)):
        of_shared = place < len(REGIONS)
        names = ("shared", "soak") if of_shared else ("counted", key)
        ledger.answers.take(region, *names, result.targets, result.checks)
        if of_shared:
            ledger.checks[region] += result.checks
        for check in result.checks:
            if check.error and not any(start <= check.sent_at <= stop for start, stop in ledger.excused):
                ledger.problems.append(f"{region}: {check.error} at {check.sent_at:.3f}")


async def strike(system: LocalSystem, chance: random.Random, ledger: Ledger, fault: str) -> None:
    """One fault in one region, two seconds into the round, and its end."""
    await asyncio.sleep(2)
    name = chance.choice(REGIONS)
    region = (await asyncio.to_thread(system.status))["regions"][name]
    seconds = chance.choice((0.1, 0.5, 2.0))
    began = time.monotonic()
    if fault == "cut":
        await asyncio.to_thread(system.cli, "cut", name)
        await asyncio.sleep(5)
        await asyncio.to_thread(system.cli, "heal", name)
    elif fault == "slow":
        await asyncio.to_thread(system.cli, "slow", name, "--ms", "150")
        await asyncio.sleep(4)
        await asyncio.to_thread(system.cli, "heal", name)
    elif fault in ("stop a primary", "pause a primary"):
        server = one_of(region, "primary", chance)
        if fault == "pause a primary":
            with redis.Redis(port=server["port"]) as client:
                client.client_pause(int(seconds * 1000), all=True)
            await asyncio.sleep(seconds)
        else:
            await stopped(server["pid"], seconds)
        ledger.silent.append(Excuse(name, began, began + seconds + 1))
    elif fault in ("kill a primary", "kill a replica"):
        role = fault.rpartition(" ")[2]
        system.kill(one_of(region, role, chance)["pid"])
        if role == "primary":
            ledger.answers.killed(Kill(name, time.monotonic()))
            ledger.silent.append(Excuse(name, began, began + PROMOTED_S))
    elif fault == "stop a node":
        await stopped(chance.choice(region["node_pids"]), seconds)
        ledger.excused.append((began - 6, began + seconds + 6))
    elif fault == "kill a node":
        place = chance.randrange(len(region["node_pids"]))
        system.kill(region["node_pids"][place])
        ledger.answers.killed(Kill(name, time.monotonic(), system.nodes(name)[place]))
        ledger.excused.append((began - 6, began + ROUND_S + 20))
    elif fault == "stop a sync service":
        await stopped(region["sync_pid"], seconds)
    elif fault == "kill a sync service":
        system.kill(region["sync_pid"])


def one_of(region: dict[str, Any], role: str, chance: random.Random) -> dict[str, Any]:
    server: dict[str, Any] = chance.choice([server for server in region["redis"] if server["role"] == role])
    return server


async def stopped(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def end(system: LocalSystem, ledger: Ledger, first_rss: dict[str, int]) -> None:
    """All is mended: back to normal, nothing left behind."""
    await asyncio.to_thread(system.settle)
    result = await drive(
        system.nodes("us-east"), 150, 10, client_key="soak", resource="GET /shared", concurrency=16
    )
    ledger.checks["us-east"] += result.checks
    ledger.answers.take("us-east", "shared", "soak", result.targets, result.checks)
    admitted = [(check.sent_at, check.answered_at) for check in result.checks if check.allowed]
    rate = rate_between(admitted, admitted[-1][1] - 4, admitted[-1][1])
    print(f"in the end {rate:.1f}/s in one region")
    if rate < 90:
        ledger.problems.append(f"in the end one region gets {rate:.1f}/s")
    ledger.problems += counts(system, ledger.answers)
    await asyncio.sleep(15)
    ledger.problems += [f"left in Redis: {key!r}" for key in all_keys(system) if not lasting(key)]
    for name, rss in memory(system).items():
        if name in first_rss and rss > 2 * first_rss[name]:
            ledger.problems.append(f"{name}: {first_rss[name] >> 20} MiB after a minute, {rss >> 20} MiB now")
    print("resident MiB:", {name: rss >> 20 for name, rss in sorted(memory(system).items())})


def lasting(key: bytes) -> bool:
    """Locks of agents, the window of a day, and what is kept for good."""
    return b"lock" in key or b"/counted:" in key or is_position(key)


def is_position(key: bytes) -> bool:
    """How far what is known of clients has come in this region: a key for each group of them, which has no end."""
    return key.startswith(b"rl:s{subjects-")


def counts(system: LocalSystem, answers: Answers) -> list[str]:
    """What nodes counted and buckets were charged, against the log."""
    time.sleep(4)  # a beat, its collection, its publication and its reading
    print(answers.told())
    usage = system.http.get(f"{system.addresses['control_api']}/v1/usage").raise_for_status().json()["rules"]
    problems = answers.usage_problems(usage)
    for region in REGIONS:
        for number in range(KEYS):
            asked = {"client_key": f"key-{number}", "resource": "POST /counted"}
            peeked = system.http.get(f"{system.nodes(region)[0]}/v1/peek", params=asked).raise_for_status().json()
            used = peeked["limit"] - peeked["remaining"]
            problems += answers.charge_problems(region, "counted", asked["client_key"], used)
    return problems


def memory(system: LocalSystem) -> dict[str, int]:
    """Resident bytes by process; one that was started anew has another name."""
    pids = {}
    for name, region in system.status()["regions"].items():
        pids[f"{name} sync"] = region["sync_pid"]
        pids.update({f"{name} node {number}": pid for number, pid in enumerate(region["node_pids"], 1)})
    return {
        f"{name} ({pid})": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for name, pid in pids.items()
        if Path(f"/proc/{pid}").exists()
    }


def primaries(system: LocalSystem) -> list[int]:
    return [
        server["port"]
        for region in system.status()["regions"].values()
        for server in region["redis"]
        if server["role"] == "primary"
    ]


def all_keys(system: LocalSystem) -> list[bytes]:
    keys: list[bytes] = []
    for port in primaries(system):
        with redis.Redis(port=port) as client:
            keys += client.scan_iter(count=1000)
    return keys


def keys_without_an_end(system: LocalSystem) -> list[str]:
    endless = []
    for port in primaries(system):
        with redis.Redis(port=port) as client:
            keys = [key for key in client.scan_iter(count=1000) if not is_position(key)]
            endless += [f"{key!r} has no end" for key in keys if client.pttl(key) == -1]
    return endless


def told(ledger: Ledger, began: float) -> str:
    rates = {
        region: sum(check.allowed for check in checks if check.sent_at >= began) / ROUND_S
        for region, checks in ledger.checks.items()
    }
    degraded = sum(
        check.degraded for checks in ledger.checks.values() for check in checks if check.sent_at >= began
    )
    return f"{sum(rates.values()):.0f}/s allowed, {degraded} degraded"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
