"""``apportion rehearse``: what a rule set would have done to the requests of an access log."""

from __future__ import annotations

import gc
import secrets
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.control import HELP as CONTROL_HELP
from services.cli.control import NoAnswer, Refused, end_refused, open_control
from services.cli.output import fail, print_json, say, stdout
from services.cli.parsing import check_format, check_map, not_in_log, parse_map
from services.cli.progress import reading
from services.cli.rules import parsed, read_file

if TYPE_CHECKING:
    from regional_limiter.model.rule import RuleSet

FROM_CONTROL = "control"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("rehearse", epilog=EXAMPLE)(rehearse)


EXAMPLE = (
    "Example: apportion rehearse access.log access.log.1.gz --rules new.yaml --current control --html report.html"
)


def rehearse(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Access logs, plain, gzip or zstd; - reads stdin.")
    ],
    rules: Annotated[str, typer.Option("--rules", metavar="FILE", help="The rule set to try.")],
    current: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Compare with this set; the word control: with what the control API has."
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="combined, vhost, envoy, alb or json; found out from the first lines unless named."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="NAME=FIELD", help="Where an attribute is in the log, as tier=plan; repeatable."
        ),
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Spread the requests of a whole second evenly over it.")
    ] = False,
    suggest: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, metavar="PERCENT", help="Say which limits would deny at most so many per cent."
        ),
    ] = None,
    keys: Annotated[int, typer.Option(min=0, max=10_000, help="How many keys to show.")] = 20,
    buckets_most: Annotated[
        int, typer.Option(min=1000, max=50_000_000, help="How many keys to keep apart at once.")
    ] = 200_000,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one page with plots.")
    ] = None,
    control: Annotated[str | None, typer.Option("--control", help=CONTROL_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay access logs through a rule set: what it would have denied, and whom.

    Nothing is asked or changed.  The rules decide as they do in a node, on the clock of the log; lines that cannot
    be read are counted and shown.
    """
    from services.rehearsal.logs import STDIN, UnreadableLog, size_of
    from services.rehearsal.reading import LogReader
    from services.rehearsal.rehearsal import Bounds, Rehearsal
    from services.rehearsal.report import report, suggested_limits
    from services.rehearsal.suggest import Notes

    check_format(format)
    if logs.count(STDIN) + [rules, current].count(STDIN) > 1:
        fail("-: stdin can be read only once")
    gc.set_threshold(100_000)  # next to nothing here is a cycle, and looking for one takes a sixth of the time
    mapped = parse_map(field or [])
    proposed = parsed(rules, read_file(rules))
    taken = Notes(proposed, tempfile.TemporaryFile) if suggest is not None else None
    bounds = Bounds(buckets_most=buckets_most)
    rehearsal = Rehearsal(proposed, _current(current, control, proposed), bounds, taken)
    try:
        with reading(size_of(logs), "rehearsing") as progress:
            reader = LogReader(list(dict.fromkeys(logs)), format, mapped, spread_seconds=spread, progress=progress)
            check_map(reader, mapped)
            names = reader.reading(rehearsal.names)
            rehearsal.run(reader.requests(names))
    except UnreadableLog as error:
        fail(str(error))
    notes = [not_in_log(name, proposed) for name in names.missing]
    suggested = None
    if taken is not None and suggest is not None:
        if sys.stderr.isatty():
            say("trying limits ...")
        suggested = suggested_limits(suggest, taken.suggestions(suggest, buckets_most))
    salt = secrets.token_bytes(16)
    found = report(rehearsal, reader.counts, reader.format_name, notes, salt, keys, suggested)
    if html is not None:
        _write_page(html, found)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _current(source: str | None, control: str | None, proposed: RuleSet) -> RuleSet | None:
    if source is None:
        return None
    if source != FROM_CONTROL:
        return parsed(source, read_file(source))
    from regional_limiter.model.errors import InvalidRules
    from regional_limiter.rules import parse_document

    try:
        body = open_control(control).call("GET", f"/rulesets/{proposed.domain}").json()
        return parse_document(body["document"])
    except (Refused, NoAnswer) as error:
        end_refused(f"the current rules of {proposed.domain}", error)
    except (KeyError, InvalidRules) as error:
        fail(f"the current rules of {proposed.domain} cannot be read by this version: {error}")


def _print(found: dict[str, Any]) -> None:
    from services.rehearsal.table import tables

    console = stdout()
    for number, part in enumerate(tables(found)):
        if number:
            console.print()
        console.print(part)


def _write_page(path: Path, found: dict[str, Any]) -> None:
    from services.rehearsal.page import page

    try:
        path.write_text(page(found), encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    say(f"{path}: written")
