"""``apportion``: rules, status, load, checks, and systems to try it all on.

Data goes to stdout, everything else to stderr.  Exit codes: 0 done, 1 refused or not well, 2 wrong usage or no
answer.  Sub-commands are imported when they run, so that help and completion are quick.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A command that lives in ``module``: an attribute ``app``, or a function ``register(app)``."""

    module: str
    help: str

    def load(self, name: str) -> Any:
        module = importlib.import_module(self.module)
        if (app := getattr(module, "app", None)) is None:
            app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
            module.register(app)
        command = typer.main.get_command(app)
        if isinstance(command, TyperGroup) and name in command.commands:
            command = command.commands[name]
        command.name = name
        return command


COMMANDS = {
    "rules": _Lazy("services.cli.rules", "Apply, check, list and export rules."),
    "override": _Lazy("services.cli.overrides", "Other limits for one key, for a while; or block it."),
    "subject": _Lazy("services.cli.subjects", "What is known of clients, such as their tier."),
    "history": _Lazy("services.cli.history", "Who changed what, when, from where and why."),
    "usage": _Lazy("services.cli.usage", "What was allowed and denied, minute by minute."),
    "token": _Lazy("services.cli.tokens", "Make, list and revoke access tokens of the control API."),
    "status": _Lazy("services.cli.status", "How regions, leader and shares are doing."),
    "check": _Lazy("services.cli.check", "Ask a node whether something may happen now."),
    "explain": _Lazy("services.cli.explain", "Why a client is limited, as every region sees it."),
    "load": _Lazy("services.cli.load", "Send checks to the regions and watch the global bound."),
    "rehearse": _Lazy("services.cli.rehearse", "What a rule set would have denied in an access log."),
    "local": _Lazy("infra.local.cli", "The whole system on this machine: up, down, cut, heal, slow, logs."),
    "hub": _Lazy("infra.hub.cli", "Make the hub's topics, check that nothing can be lost, run its services."),
    "region": _Lazy("infra.region.cli", "Deploy a region; let it join, leave, change its weight; say it is lost."),
    "simulate": _Lazy("services.cli.simulate", "What a limit will do in a geography, before deploying it."),
    "dev": _Lazy("services.cli.dev", "All regions in one process, without Redis and Kafka."),
    "plan": _Lazy("services.cli.plan", "How many nodes and shards a deployment needs."),
    "config": _Lazy("services.cli.config", "Check and show the settings of a process."),
}


class LazyGroup(TyperGroup):
    """Knows names and help of its commands, and imports the one that is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, lazy in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=lazy.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in COMMANDS:
            try:
                self.commands[name] = COMMANDS[name].load(name)
            except ModuleNotFoundError as error:
                if error.name != COMMANDS[name].module and not COMMANDS[name].module.startswith(f"{error.name}."):
                    raise
                ctx.fail(f"{name} is not part of this installation ({error.name} is missing)")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    name="apportion",
    no_args_is_help=True,
    help="Rate limits that hold over several regions together, each check answered inside its region.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich's takes longer to import than the rest takes to run
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("apportion"))
        raise typer.Exit


@app.callback()
def common(
    verbose: int = typer.Option(0, "--verbose", "-v", count=True, help="Say more on stderr; twice: everything."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Say only what went wrong."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    level = "error" if quiet else ("warning", "info", "debug")[min(verbose, 2)]
    os.environ["APPORTION_CLI_LOG_LEVEL"] = level
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format="%(levelname)s %(name)s: %(message)s")


def main() -> None:
    """The entry point of the distribution."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
