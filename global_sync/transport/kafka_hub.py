"""The hub's Kafka as an operator handles it: its topics are made, and looked at.  [IO]"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from global_sync.transport.base import LOG, TransportUnavailable
from global_sync.transport.kafka import KafkaOptions, KafkaTransport, create_missing
from global_sync.transport.topics import LOOKED_AT, TOPICS, Topic

Made = TypeVar("Made")

PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class HubView:
    """``topics``: ours, as far as they are there.  ``brokers``: how many are alive."""

    topics: dict[str, Topic]
    brokers: int


async def make_topics(options: KafkaOptions) -> list[str]:
    """Make the topics that are not there; their names.  Raises TransportUnavailable, also when brokers refuse."""
    return await _administer(options, lambda admin: create_missing(admin, options))


async def begin_log(options: KafkaOptions, value: bytes) -> bytes:
    """Append ``value`` to the log if it has no record; what the log begins with.  Raises TransportUnavailable.

    A topic that was made just now is not led at once, so it is tried for ``PATIENCE_S``.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await _begin_log(options, value)
        except TransportUnavailable:
            if time.monotonic() > until_s:
                raise
            await asyncio.sleep(0.2)


async def _begin_log(options: KafkaOptions, value: bytes) -> bytes:
    transport = KafkaTransport(options)
    try:
        reader = await transport.reader(LOG, "earliest")
        if await reader.end_offset() == 0:
            await transport.send(LOG, [value])
        async with asyncio.timeout(PATIENCE_S):
            while not (messages := await reader.read(1000)):
                pass
        return messages[0].value
    except TimeoutError:
        raise TransportUnavailable(f"{options.bootstrap}: the log's first record cannot be read") from None
    finally:
        await transport.close()


async def look(options: KafkaOptions) -> HubView:
    """What is there.  Raises TransportUnavailable."""

    async def read(admin: AIOKafkaAdminClient) -> HubView:
        brokers = len((await admin.describe_cluster())["brokers"])
        there = [name for name in await admin.list_topics() if name in TOPICS]
        if not there:
            return HubView({}, brokers)
        described = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics(there)}
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, configs=dict.fromkeys(LOOKED_AT)) for name in there
        ]
        settings: dict[str, dict[str, str]] = {name: {} for name in there}
        for answer in await admin.describe_configs(resources):
            for code, message, _, name, entries in answer.resources:
                if code != 0:
                    raise TransportUnavailable(f"the settings of {name} cannot be looked at: {code} {message}")
                settings[name] = {setting: value for setting, value, *_ in entries}
        topics = {
            name: Topic(
                partitions=len(partitions),
                replication=min(len(partition["replicas"]) for partition in partitions),
                settings=settings[name],
                away=max(len(partition["replicas"]) - len(partition["isr"]) for partition in partitions),
            )
            for name, partitions in described.items()
        }
        return HubView(topics, brokers)

    return await _administer(options, read)


async def _administer(options: KafkaOptions, work: Callable[[AIOKafkaAdminClient], Awaitable[Made]]) -> Made:
    admin = AIOKafkaAdminClient(**options.common())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await admin.start()
            return await work(admin)
    except (KafkaError, OSError, TimeoutError) as error:
        raise TransportUnavailable(f"{options.bootstrap}: {str(error) or type(error).__name__}") from None
    finally:
        try:
            async with asyncio.timeout(1):
                await admin.close()
        except (KafkaError, OSError, TimeoutError):
            pass
