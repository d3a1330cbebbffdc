"""``apportion simulate --rules … --log …``: a rule set over the requests of an access log, in a geography."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from services.cli.geography import cuts_of, delays_of, regions_of
from services.cli.output import fail, print_faults, print_json, say, stdout, write_page
from services.cli.parsing import check_format, check_map, fields_of, not_in_log, parse_map
from services.cli.progress import reading
from services.cli.rules import parsed, read_file

if TYPE_CHECKING:
    from regional_limiter.model.rule import RuleSet
    from services.rehearsal.reading import LogReader
    from services.simulator.over_log import Request
    from services.simulator.placing import Placing

SECONDS_MOST = 3600.0


@dataclass(frozen=True)
class LogOptions:
    """As the options of the command say them; None and empty: not given."""

    rules: str | None
    logs: Sequence[str]
    regions: str | None
    latency: str | None
    format: str | None
    mapped: Sequence[str]
    spread: bool
    skip_s: float
    seconds: float | None
    region_field: str | None
    region_is: Sequence[str]
    traffic: str | None
    each: bool
    cuts: Sequence[str]
    seed: int
    keys: int
    beside: int


def over_log(options: LogOptions, of_traces: Sequence[str]) -> dict[str, Any]:
    """The document of the run; ``of_traces``: options that were given and mean nothing here."""
    from services.rehearsal.logs import STDIN, UnreadableLog, size_of
    from services.rehearsal.reading import LogReader
    from services.simulator.log_report import document
    from services.simulator.over_log import LogSetting, simulate_log

    if options.rules is None or not options.logs:
        fail("--rules and --log belong together: a rule set, and the log whose requests meet it")
    if of_traces:
        fail(f"{of_traces[0]}: the limits are those of --rules, and what is asked for is in the log")
    check_format(options.format)
    if list(options.logs).count(STDIN) + (options.rules == STDIN) > 1:
        fail("-: stdin can be read only once")
    rule_set, left_out = _global_part(options, parsed(options.rules, read_file(options.rules)))
    names = list(rule_set.regions)
    if options.latency is None:
        fail(f"--latency: how far each region is from the hub, in ms one way: of {', '.join(names)}, in this order")
    delays_ms = delays_of(options.latency, names)
    placing = _placing(options, rule_set)
    setting = LogSetting(
        rule_set,
        delays_ms,
        placing,
        options.seconds or SECONDS_MOST,
        cuts=cuts_of(options.cuts, names),
        seed=options.seed,
    )
    mapped = parse_map(options.mapped)
    try:
        with reading(size_of(list(options.logs)), "simulating") as progress:
            reader = LogReader(
                list(dict.fromkeys(options.logs)),
                options.format,
                mapped,
                spread_seconds=options.spread,
                progress=progress,
            )
            attributes = reader.reading(_names(rule_set) | placing.attributes)
            check_map(reader, mapped)
            _check_missing(options, reader, attributes.missing, rule_set)
            say(f"simulating {len(names)} regions on the clock of the log ...")
            outcome = simulate_log(setting, _skipped(reader.requests(attributes), options.skip_s))
    except UnreadableLog as error:
        fail(str(error))
    if outcome is None:
        fail("there is no request in the log" + (f" after {options.skip_s:g} s" if options.skip_s else ""))
    found = document(setting, outcome, left_out, options.keys, options.beside)
    found["lines_unreadable"] = dict(reader.counts.unreadable)
    return found


def _global_part(options: LogOptions, rule_set: RuleSet) -> tuple[RuleSet, dict[str, str]]:
    from regional_limiter.model.errors import InvalidRules
    from services.simulator.over_log import simulated_part

    regions = regions_of(options.regions) if options.regions is not None else dict(rule_set.regions)
    if len(regions) < 2:
        fail("--regions: the rule set names none: give names and weights, as eu:2,us:1")
    try:
        part, left_out = simulated_part(rule_set, regions)
    except InvalidRules as error:
        print_faults(
            f"{options.rules} over these regions", [(fault.place, fault.problem) for fault in error.faults]
        )
        raise typer.Exit(1) from None
    if not part.rules:
        why = "; ".join(f"{name} is {reason}" for name, reason in left_out.items())
        fail(f"{options.rules}: no rule of scope: global" + (f" ({why})" if why else ""), 1)
    return part, left_out


def _placing(options: LogOptions, rule_set: RuleSet) -> Placing:
    from services.simulator.placing import Placing

    weights = dict(rule_set.regions)
    if options.traffic is not None:
        given = regions_of(options.traffic, "--traffic", least=1)
        if unknown := sorted(set(given) - set(weights)):
            fail(f"--traffic {unknown[0]}: one of {', '.join(weights)}")
        weights = {name: given.get(name, 0) for name in weights}
    named: dict[str, str] = {}
    for pair in options.region_is:
        text, equals, region = pair.rpartition("=")
        if not equals or region not in weights:
            fail(f"--region-is {pair}: what the field says, and one of {', '.join(weights)}, as fra=eu-west")
        named[text] = region
    if named and options.region_field is None:
        fail("--region-is: of the field that --region-field names")
    return Placing(weights, field=options.region_field, names=named, each=options.each, seed=options.seed)


def _names(rule_set: RuleSet) -> set[str]:
    """The attributes that the set asks for."""
    from services.rehearsal.replay import Replay

    return Replay(rule_set).names


def _check_missing(options: LogOptions, reader: LogReader, missing: Sequence[str], rule_set: RuleSet) -> None:
    for name in missing:
        if name == options.region_field:
            fail(f"--region-field {name}: {fields_of(reader)}")
        say(not_in_log(name, rule_set))


def _skipped(requests: Iterable[Request], seconds: float) -> Iterator[Request]:
    first_ms: int | None = None
    for request in requests:
        first_ms = request[0] if first_ms is None else first_ms
        if request[0] - first_ms >= 1000 * seconds:
            yield request


def show_log(found: dict[str, Any], as_json: bool, html: Path | None, rules: str) -> None:
    """Print it, draw it; ends with 1 if a limit was exceeded, or an invariant did not hold."""
    if as_json:
        print_json(found)
    else:
        _print(found)
    if html is not None:
        from services.simulator.log_report import page

        write_page(html, page(f"What {Path(rules).name} does over these regions", found))
    if found["problems"]:
        fail("\n".join(found["problems"]), 1)


def _print(found: Mapping[str, Any]) -> None:
    from services.simulator.log_report import (
        KEY_HEADS,
        RULE_HEADS,
        WAY_HEADS,
        key_rows,
        notes,
        rule_rows,
        summary,
        traffic,
        way_rows,
    )

    console = stdout()
    console.print(f"[bold]{summary(found)}[/]\n")
    _table(RULE_HEADS, rule_rows(found))
    if found["keys"]:
        console.print("\n[bold]Keys that lost most[/]")
        _table(KEY_HEADS, key_rows(found))
    for one in found["beside"]:
        console.print(f"\n[bold]Other ways to split {one['rule']}[/] of {one['key']}", markup=True)
        _table(WAY_HEADS, way_rows(one["ways"]))
    console.print(f"\n{traffic(found)}")
    if (unreadable := sum(found["lines_unreadable"].values())) > 0:
        console.print(f"{unreadable:,} lines were no requests")
    for note in notes(found):
        console.print(note, markup=False)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place > 1 or (place and heads[0] == "") else "left")
    for row in rows:
        table.add_row(*(Text(cell, style="red" if cell.endswith(" tokens") else "") for cell in row))
    stdout().print(table)
