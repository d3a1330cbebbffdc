"""``apportion simulate``: what a limit will do in a geography, before it is deployed there."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.geography import cuts_of, delays_of, regions_of
from services.cli.output import fail, print_json, say, stdout, write_page
from services.cli.simulate_log import LogOptions, over_log, show_log

if TYPE_CHECKING:
    from services.simulator.run import Outcome, Setting

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 60
_LIMIT = re.compile(r"(\d{1,7})(?:/s)?")
SECONDS_MOST = 3600
_OF_TRACES = ("limit", "burst", "trace", "hot", "evenly")
_OF_LOGS = ("format", "field", "spread", "skip", "region_field", "region_is", "traffic", "each", "keys", "beside")
REGIONS = "us-east,us-west,eu-west,ap-south,sa-east"
LATENCY = "2,32,42,78,100"


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: apportion simulate --regions eu:2,us:1 --latency 5,60 --trace flash")
    def simulate(
        context: typer.Context,
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
        seconds: Annotated[
            float | None,
            typer.Option(min=1, max=SECONDS_MOST, help="How long, of its own time: 60; of a log, all or an hour."),
        ] = None,
        cut: Annotated[
            list[str] | None,
            typer.Option(help="Cut a region's link, or the hub's (hub), for some seconds: eu-west:20-60."),
        ] = None,
        evenly: Annotated[
            bool, typer.Option("--evenly", help="Requests evenly spaced instead of as chance brings them.")
        ] = False,
        seed: Annotated[int, typer.Option(min=0, help="Of chance: the same seed, the same run.")] = 1,
        rules: Annotated[
            str | None, typer.Option(metavar="FILE", help="A rule set, over the requests of --log; no trace then.")
        ] = None,
        log: Annotated[
            list[str] | None,
            typer.Option(metavar="FILE", help="An access log, plain, gzip or zstd, - for stdin; repeatable."),
        ] = None,
        format: Annotated[str | None, typer.Option(help="Of the log; see apportion rehearse.")] = None,
        field: Annotated[
            list[str] | None,
            typer.Option("--map", metavar="NAME=FIELD", help="Where an attribute is in the log; repeatable."),
        ] = None,
        spread: Annotated[
            bool, typer.Option("--spread", help="Spread the requests of a whole second evenly over it.")
        ] = False,
        skip: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Begin so far into the log.")] = 0.0,
        region_field: Annotated[
            str | None, typer.Option(metavar="FIELD", help="Where the log says which region a request is from.")
        ] = None,
        region_is: Annotated[
            list[str] | None,
            typer.Option(metavar="TEXT=REGION", help="What that field says for a region; repeatable."),
        ] = None,
        traffic: Annotated[
            str | None,
            typer.Option(
                help="Where clients are, as eu:3,us:1, by a hash of each; as the regions' weights unless."
            ),
        ] = None,
        each: Annotated[
            bool, typer.Option("--each", help="Place each request by chance instead of each client.")
        ] = False,
        keys: Annotated[int, typer.Option(min=0, max=1000, help="Of a log: how many keys to show.")] = 10,
        beside: Annotated[
            int, typer.Option(min=0, max=20, help="Of these, on how many other ways to split are tried.")
        ] = 2,
        html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page with drawings there.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    ) -> None:
        """What a limit will do in your geography: the real code on a virtual clock, beside other ways to split it.

        Utilisation is what was admitted, of what one bucket without any distance would have admitted.  With --rules
        and --log, a log's requests meet a rule set's global limits on the log's own clock.
        """
        import structlog

        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        given = {name for name in context.params if _is_given(context, name)}
        if rules is not None or log:
            found = over_log(
                LogOptions(
                    rules=rules,
                    logs=log or [],
                    regions=regions if "regions" in given else None,
                    latency=latency if "latency" in given else None,
                    format=format,
                    mapped=field or [],
                    spread=spread,
                    skip_s=skip,
                    seconds=seconds,
                    region_field=region_field,
                    region_is=region_is or [],
                    traffic=traffic,
                    each=each,
                    cuts=cut or [],
                    seed=seed,
                    keys=keys,
                    beside=beside,
                ),
                [_called(context, name) for name in _OF_TRACES if name in given],
            )
            show_log(found, as_json, html, rules or "")
            return
        if wrong := [name for name in _OF_LOGS if name in given]:
            fail(f"{_called(context, wrong[0])}: of a log only: give --rules and --log")
        from services.simulator.report import document
        from services.simulator.run import simulate as simulated

        seconds = seconds or 60.0
        setting, about = _setting(regions, latency, limit, burst, trace, hot, seconds, cut or [], evenly, seed)
        say(f"simulating {seconds:g} s of {len(setting.delays_ms)} regions ...")
        outcome = simulated(setting)
        if as_json:
            print_json(document(outcome))
        else:
            _print(about, list(setting.delays_ms), outcome)
        if html is not None:
            write_page(html, _page(about, setting, outcome))
        if outcome.problems:
            fail("\n".join(outcome.problems), 1)


def _called(context: typer.Context, name: str) -> str:
    """The option that fills this parameter."""
    return next(one.opts[0] for one in context.command.params if one.name == name)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
    from services.simulator.faults import cut, heal
    from services.simulator.run import Setting
    from services.simulator.traces import SHAPES

    weights = regions_of(regions)
    names = list(weights)
    delays_ms = delays_of(latency, names)
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
        faults=[(at_s, (cut if is_cut else heal)(of)) for at_s, of, is_cut in cuts_of(cuts, names)],
    )
    about = f"{rate}/s over {len(names)} regions, burst {burst}; {shape.words}"
    return setting, about


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


def _page(about: str, setting: Setting, outcome: Outcome) -> str:
    from services.simulator.page import page
    from services.simulator.report import rows

    title = "What this limit does over these regions"
    return page(title, f"{about}.", list(setting.delays_ms), setting.rate, rows(outcome), outcome)
