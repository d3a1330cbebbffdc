"""``apportion simulate``: what a limit will do in a geography, before it is deployed there."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.output import fail, print_json, say, stdout

if TYPE_CHECKING:
    from services.simulator.run import Fault, Outcome, Setting

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 60
_LIMIT = re.compile(r"(\d{1,7})(?:/s)?")
_CUT = re.compile(r"(?P<who>[A-Za-z0-9._-]+):(?P<begin>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)")
REGIONS_MOST = 20
SECONDS_MOST = 3600
DELAY_MS_MOST = 2000
REGIONS = "us-east,us-west,eu-west,ap-south,sa-east"
LATENCY = "2,32,42,78,100"


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: apportion simulate --regions eu:2,us:1 --latency 5,60 --trace flash")
    def simulate(
        regions: Annotated[
            str, typer.Option(help="Names, with weights where they are not equal: eu:2,us:1,ap:1.")
        ] = REGIONS,
        latency: Annotated[
            str, typer.Option(help="One-way delay of each region to the hub, in ms, in the same order.")
        ] = LATENCY,
        limit: Annotated[str, typer.Option(help="The limit over all regions: 1000/s.")] = "1000/s",
        burst: Annotated[int, typer.Option(min=1, max=10_000_000, help="Its capacity.")] = 100,
        trace: Annotated[
            str,
            typer.Option(
                help="What is asked for: steady, on-off, swap, follow-sun, flash, even, overload, wandering."
            ),
        ] = "steady",
        hot: Annotated[str, typer.Option(help="The region where the load is, or turns up.")] = "",
        seconds: Annotated[float, typer.Option(min=1, max=SECONDS_MOST, help="How long, of its own time.")] = 60.0,
        cut: Annotated[
            list[str] | None,
            typer.Option(help="Cut a region's link, or the hub's (hub), for some seconds: eu-west:20-60."),
        ] = None,
        evenly: Annotated[
            bool, typer.Option("--evenly", help="Requests evenly spaced instead of as chance brings them.")
        ] = False,
        seed: Annotated[int, typer.Option(min=0, help="Of chance: the same seed, the same run.")] = 1,
        html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page with drawings there.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    ) -> None:
        """What a limit will do in your geography: the real code on a virtual clock, beside other ways to split it.

        Utilisation is what was admitted, of what one bucket without any distance would have admitted.
        """
        import structlog

        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        from services.simulator.report import document
        from services.simulator.run import simulate as simulated

        setting, about = _setting(regions, latency, limit, burst, trace, hot, seconds, cut or [], evenly, seed)
        say(f"simulating {seconds:g} s of {len(setting.delays_ms)} regions ...")
        outcome = simulated(setting)
        if as_json:
            print_json(document(outcome))
        else:
            _print(about, list(setting.delays_ms), outcome)
        if html is not None:
            _write_page(html, about, setting, outcome)
        if outcome.problems:
            fail("\n".join(outcome.problems), 1)


def _setting(
    regions: str,
    latency: str,
    limit: str,
    burst: int,
    trace: str,
    hot: str,
    seconds: float,
    cuts: Sequence[str],
    evenly: bool,
    seed: int,
) -> tuple[Setting, str]:
    """What the options ask for, and that in words.  Ends the process at the first option that is wrong."""
    from services.simulator.run import Setting
    from services.simulator.traces import SHAPES

    weights = _regions(regions)
    names = list(weights)
    delays_ms = _delays(latency, names)
    match = _LIMIT.fullmatch(limit)
    if match is None or int(match[1]) == 0:
        fail(f"--limit {limit}: tokens a second, like 1000/s")
    rate = int(match[1])
    if trace not in SHAPES:
        fail(f"--trace {trace}: one of {', '.join(SHAPES)}")
    if hot and hot not in names:
        fail(f"--hot {hot}: one of {', '.join(names)}")
    if burst < len(names):
        fail(f"--burst {burst}: at least the number of regions, {len(names)}: a smaller one cannot follow demand")
    shape = SHAPES[trace]
    place = names.index(hot) if hot else len(names) // 2
    setting = Setting(
        delays_ms,
        shape.make(float(rate), len(names), place),
        seconds,
        rate=rate,
        capacity=burst,
        weights=weights,
        random=not evenly,
        seed=seed,
        faults=_faults(cuts, names),
    )
    about = f"{rate}/s over {len(names)} regions, burst {burst}; {shape.words}"
    return setting, about


def _regions(text: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for item in text.split(","):
        name, _, weight = item.strip().partition(":")
        if not re.fullmatch(r"[a-z0-9._-]{1,64}", name):
            fail(f"--regions {item}: a name is made of a-z, 0-9, dot, dash and underscore")
        if name in weights:
            fail(f"--regions: {name} is given twice")
        if weight and not (weight.isdecimal() and 1 <= int(weight) <= 10_000):
            fail(f"--regions {item}: a weight is a number from 1 to 10000")
        weights[name] = int(weight or 1)
    if not 2 <= len(weights) <= REGIONS_MOST:
        fail(f"--regions: from 2 to {REGIONS_MOST} of them")
    return weights


def _delays(text: str, names: Sequence[str]) -> dict[str, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(names):
        fail(f"--latency: {len(parts)} numbers for {len(names)} regions")
    for part in parts:
        if not (part.isdecimal() and int(part) <= DELAY_MS_MOST):
            fail(f"--latency {part}: milliseconds from 0 to {DELAY_MS_MOST}")
    return {name: int(part) for name, part in zip(names, parts, strict=True)}


def _faults(cuts: Sequence[str], names: Sequence[str]) -> list[tuple[float, Fault]]:
    from services.simulator.faults import cut, heal

    faults: list[tuple[float, Fault]] = []
    for text in cuts:
        match = _CUT.fullmatch(text)
        if match is None or float(match["begin"]) >= float(match["end"]):
            fail(f"--cut {text}: a region (or hub), from and to in seconds, like eu-west:20-60")
        who = match["who"]
        if who != "hub" and who not in names:
            fail(f"--cut {text}: one of {', '.join(names)}, or hub")
        of = list(names) if who == "hub" else [who]
        faults += [(float(match["begin"]), cut(of)), (float(match["end"]), heal(of))]
    return faults


def _print(about: str, names: Sequence[str], outcome: Outcome) -> None:
    from rich.table import Table

    from services.simulator.report import convergence_in_words, rows

    console = stdout()
    console.print(f"[bold]{about}[/]\n")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("", "utilisation", "false rejects", "over the limit", "messages/s"):
        table.add_column(head, justify="left" if not head else "right", no_wrap=True)
    for row in rows(outcome):
        excess = f"[red]{row.excess}[/]" if row.exceeds else row.excess
        table.add_row(row.name, row.utilisation, row.false_rejects, excess, row.messages)
    console.print(table)
    console.print(f"\n{convergence_in_words(outcome)}")
    console.print(
        f"shares in force: at most {outcome.shares_most} of 10000; "
        f"{outcome.bytes_a_second / 1000:.1f} kB/s between the regions\n"
    )
    width = max(map(len, (*names, "all")))
    rate = max([sum(sample.offered) for sample in outcome.samples] + [1.0])
    console.print(f"{'asked for'.ljust(width + 10)} {_line([sum(s.offered) for s in outcome.samples], rate)}")
    console.print(f"{'admitted'.ljust(width + 10)} {_line([sum(s.admitted) for s in outcome.samples], rate)}")
    for place, name in enumerate(names):
        shares = [float(sample.shares[place]) for sample in outcome.samples]
        console.print(f"{name.ljust(width)} share     {_line(shares, 10_000.0)}")


def _line(values: Sequence[float], most: float) -> str:
    """A drawing of one line: each column the mean of its part."""
    columns = min(_COLUMNS, len(values))
    bars = []
    for column in range(columns):
        part = values[len(values) * column // columns : len(values) * (column + 1) // columns]
        mean = sum(part) / len(part)
        bars.append(_BARS[min(len(_BARS) - 1, round((len(_BARS) - 1) * mean / most))])
    return "".join(bars)


def _write_page(path: Path, about: str, setting: Setting, outcome: Outcome) -> None:
    from services.simulator.page import page
    from services.simulator.report import rows

    title = "What this limit does over these regions"
    text = page(title, f"{about}.", list(setting.delays_ms), setting.rate, rows(outcome), outcome)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"--html {path}: {error.strerror}")
    say(f"drawn in {path}")
