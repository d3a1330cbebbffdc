"""What the processes' beginnings have in common: settings from ``--config``, logs, and the way to Kafka.  [W]"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from global_sync.transport.kafka import KafkaOptions, KafkaTransport, Sasl
from services.hiding import Hiding
from services.logs import configure_logging
from services.settings import HubSettings, InvalidSettings, KafkaSettings, RegionSettings

Settings = TypeVar("Settings", HubSettings, RegionSettings)


def begin(service: str, description: str, load: Callable[[str], Settings], arguments: list[str] | None) -> Settings:
    """The settings of the file that ``--config`` names, with the process's logs set up.

    Raises SystemExit(2), told on stderr, for wrong settings or arguments.
    """
    parser = argparse.ArgumentParser(prog=f"python -m services.{service}", description=description)
    parser.add_argument("--config", required=True, help="the TOML file of its settings")
    try:
        settings = load(parser.parse_args(arguments).config)
    except InvalidSettings as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    bound = {"region": settings.name} if isinstance(settings, RegionSettings) else {}
    configure_logging(
        service,
        level=settings.log_level,
        form=settings.telemetry.log_format,
        hiding=hiding_of(settings),
        **bound,
    )
    return settings


def hiding_of(settings: HubSettings | RegionSettings) -> Hiding:
    """What the log may tell of keys.  Where there is no secret of the deployment, hashes are the process's own."""
    secret = secrets.token_bytes(32)
    if isinstance(settings, RegionSettings):
        with suppress(InvalidSettings):  # told where the secret is needed
            secret = settings.key_secret()
    return Hiding(secret, settings.telemetry.log_keys)


def kafka_transport(settings: KafkaSettings, client_id: str) -> KafkaTransport:
    return KafkaTransport(kafka_options(settings, client_id))


def kafka_options(settings: KafkaSettings, client_id: str) -> KafkaOptions:
    return KafkaOptions(
        settings.bootstrap,
        client_id=client_id,
        replication=settings.replication,
        min_insync=settings.min_insync,
        tls=settings.tls.contexts() if settings.tls else None,
        sasl=_sasl(settings),
    )


def _sasl(settings: KafkaSettings) -> Sasl | None:
    sasl = settings.sasl
    return Sasl(sasl.mechanism, sasl.username, sasl.password.get_secret_value()) if sasl else None
