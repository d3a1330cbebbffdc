"""``apportion hub``: the hub's Kafka, made ready and looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.output import fail, print_json

if TYPE_CHECKING:
    from global_sync.transport.kafka import KafkaOptions

_HELP = "Make the hub's topics, and check that nothing can be lost.  Example: apportion hub init --config hub.toml"
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)

Config = Annotated[Path, typer.Option("--config", "-c", help="hub.toml or region.toml: its [kafka] is used.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Anew = Annotated[
    bool,
    typer.Option("--anew", help="Another log was lost: of windows that began before now nothing is to be granted."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 1 also for what is only weak.")]


@app.command(epilog="Example: apportion hub init -c hub.toml")
def init(config: Config, anew: Anew = False, as_json: AsJson = False, strict: Strict = False) -> None:
    """Make the topics that are not there, then check.  A second time changes nothing."""
    from global_sync.transport.base import TransportUnavailable
    from global_sync.transport.kafka_hub import make_topics

    options = _options(config)
    try:
        made = asyncio.run(make_topics(options))
        follows_lost = not anew or _follows_a_lost_log(options)
    except TransportUnavailable as error:
        fail(f"the hub could not be made ready: {error}")
    if not follows_lost:
        fail("--anew: rl.log was begun without it, so windows may be granted twice: end whoever uses this hub, "
             "delete its topics, and begin with this command")  # fmt: skip
    if not as_json:
        typer.echo(f"made: {', '.join(made)}" if made else "every topic is there already", err=True)
    _check(options, as_json, strict, made)


def _follows_a_lost_log(options: KafkaOptions) -> bool:
    """Say so in the log's first record, or see that it says so.  Raises TransportUnavailable."""
    from global_sync.codec import MalformedRecord, decode_records, encode_records
    from global_sync.protocol.ledger import after_a_lost_log
    from global_sync.protocol.messages import Snapshot
    from global_sync.transport.kafka_hub import begin_log
    from services.clock import wall_ms

    value = asyncio.run(begin_log(options, encode_records([after_a_lost_log(wall_ms())])))
    try:
        first = next(iter(decode_records(value)), None)
    except MalformedRecord as error:
        fail(f"--anew: the first record of rl.log is not understood: {error}")
    return isinstance(first, Snapshot) and first.windows_from_ms > 0


@app.command(epilog="Example: apportion hub check -c hub.toml --json")
def check(config: Config, as_json: AsJson = False, strict: Strict = False) -> None:
    """Whether topics, partitions, replication and retention keep what all regions stand on.  1: they do not."""
    _check(_options(config), as_json, strict, [])


def _check(options: KafkaOptions, as_json: bool, strict: bool, made: list[str]) -> None:
    from global_sync.transport.base import TransportUnavailable
    from global_sync.transport.kafka_hub import look
    from global_sync.transport.topics import findings

    try:
        view = asyncio.run(look(options))
    except TransportUnavailable as error:
        fail(f"the hub cannot be looked at: {error}")
    told = findings(view.topics, view.brokers)
    bad = any(finding.severity == "unsafe" or strict for finding in told)
    if as_json:
        listed = [{"severity": each.severity, "topic": each.topic, "problem": each.problem} for each in told]
        print_json({"safe": not bad, "brokers": view.brokers, "made": made, "findings": listed})
    else:
        for finding in told:
            typer.echo(f"{finding.severity:8} {finding.topic:14} {finding.problem}")
        typer.echo("not safe" if bad else "safe, but not strong" if told else "safe")
    if bad:
        raise typer.Exit(1)


def _options(config: Path) -> KafkaOptions:
    from services.cli.config import load_settings
    from services.start import kafka_options

    _, settings = load_settings(str(config), as_json=False)
    return kafka_options(settings.kafka, "apportion-hub")
