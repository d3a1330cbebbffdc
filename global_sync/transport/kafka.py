"""The transport over Apache Kafka.

Plain producers (acks=all; neither idempotent nor transactional: those hang for minutes when the broker is
gone, and order, repeats and late writes are dealt with by the records themselves), one per topic, one batch in
flight.  Readers use ``assign`` without a group.  aiokafka gives no sign of a silent broker and can wedge, so

- every call has a deadline;
- a client that missed one is dropped and another is made, in the background, until it connects;
- a reader that hears nothing from the broker, not even an empty answer, says so.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    IllegalOperation,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    OffsetOutOfRangeError,
)

from global_sync.transport.base import (
    IN_FLIGHT,
    LOG,
    Message,
    Reader,
    RecordsMissed,
    Sends,
    Start,
    TransportUnavailable,
    furthest_behind,
    keys_for,
)
from global_sync.transport.topics import TOPICS, settings_of
from regional_limiter.durations import SEND_BOUNDS_S, Durations

_log = logging.getLogger(__name__)

_BATCH_BYTES = 900_000
_MESSAGES_A_READ = 500
_STOP_S = 1.0
_BACKOFF_S = 0.1
_CLIENT_ERRORS = (KafkaError, OSError, TimeoutError, AssertionError)  # aiokafka asserts on half-open clients

Client = TypeVar("Client")


class LogNotKept(TransportUnavailable):
    """The topic of the log is there, but its settings let the broker drop records: a person must mend them."""


@dataclass(frozen=True, slots=True)
class Sasl:
    """Who we are to the brokers.  ``mechanism``: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """``bootstrap``: the servers, ``host:port,…``.  ``tls``: asked for its context by each new client; None: in
    clear.  ``request_timeout_ms``: after so long without an answer a connection is given up, so a link
    is used again that long after it healed at the latest.  ``silence_ms``: what a reader bears."""

    bootstrap: str
    client_id: str = "apportion"
    replication: int = 1
    min_insync: int = 1
    request_timeout_ms: int = 1500
    silence_ms: int = 3000
    fetch_wait_ms: int = 250
    tls: Callable[[], ssl.SSLContext] | None = None
    sasl: Sasl | None = None

    def common(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "retry_backoff_ms": 100,
            "metadata_max_age_ms": 30_000,
            **self._security(),
        }

    def _security(self) -> dict[str, Any]:
        protocol = ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")
        told: dict[str, Any] = {"security_protocol": protocol}
        if self.tls is not None:
            told["ssl_context"] = self.tls()
        if self.sasl is not None:
            told["sasl_mechanism"] = self.sasl.mechanism
            told["sasl_plain_username"] = self.sasl.username
            told["sasl_plain_password"] = self.sasl.password
        return told


class _Kept(Generic[Client]):
    """A connected client, made anew in the background whenever it was dropped.

    ``connect`` makes one attempt and leaves nothing behind when it fails; ``stop`` ends a client.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Client]], stop: Callable[[Client], Coroutine[Any, Any, None]]
    ) -> None:
        self._connect = connect
        self._stop = stop
        self._client: Client | None = None
        self._connecting: asyncio.Task[Client] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def client(self) -> Client | None:
        """The one that is connected just now."""
        return self._client

    async def get(self) -> Client:
        """The client, as soon as there is one.  Cancelling this does not end the attempts."""
        if self._client is not None:
            return self._client
        if self._closed:
            raise TransportUnavailable("closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect_until_it_works())
            self._connecting.add_done_callback(_heed)
        return await asyncio.shield(self._connecting)

    async def _connect_until_it_works(self) -> Client:
        try:
            while not self._closed:
                try:
                    client = await self._connect()
                except _CLIENT_ERRORS:
                    await asyncio.sleep(_BACKOFF_S)
                    continue
                if not self.closed:
                    self._client = client
                    return client
                await self._stop(client)
            raise TransportUnavailable("closed")
        finally:
            self._connecting = None  # after an error there is nothing to wait for; who asks again tries again

    def drop(self, client: Client) -> None:
        """Give up ``client`` (unless another has taken its place), without waiting for its end."""
        if self._client is client:
            self._client = None
        task = asyncio.create_task(self._stop(client))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends within some seconds, whatever state the client is in.

        An attempt that is under way is not cancelled, since aiokafka would leave its connection behind: it ends by
        itself, and who waits for it is told then.
        """
        self._closed = True
        connecting = self._connecting
        if connecting is not None:
            _under_way.add(connecting)
            connecting.add_done_callback(_under_way.discard)
            await asyncio.wait({connecting}, timeout=_STOP_S)
        if self._client is not None:
            self.drop(self._client)
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=3 * _STOP_S + 0.5)


def _heed(future: asyncio.Future[Any]) -> None:
    """Nobody may be waiting any more: its error is no news then."""
    if not future.cancelled():
        future.exception()


async def _bounded(ending: Coroutine[Any, Any, None]) -> None:
    """Wait for an end, but not for ever.  In a task of its own: aiokafka swallows cancellations while it ends."""
    task = asyncio.create_task(ending)
    task.add_done_callback(_heed)
    try:
        await asyncio.wait({task}, timeout=_STOP_S)
    finally:
        task.cancel()
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("a client did not stop cleanly: %r", error)


async def _end(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    """End a client and all that it runs, within some seconds.

    Its own stop waits for what is under way; given up before that, it leaves behind what sends or reads, and what
    keeps connections open and opens them again: for ever, with every client that is given up.  Who waits for it may
    be cancelled; it goes on.
    """
    task = asyncio.create_task(_end_all(client))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    await asyncio.shield(task)


_under_way: set[asyncio.Task[Any]] = set()
"""What ends by itself: the loop alone does not keep it alive."""


async def _end_all(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    await _bounded(client.stop())
    at_work = client._sender if isinstance(client, AIOKafkaProducer) else client._fetcher
    if at_work is not None:
        await _bounded(at_work.close())
    if isinstance(client, AIOKafkaProducer):
        _give_up_batches(client)
        await _bounded(client.client.close())
    else:
        await _bounded(client._client.close())


def _give_up_batches(producer: AIOKafkaProducer) -> None:
    """Nobody sends them any more, and its stop would wait for them for ever."""
    accumulator = producer._message_accumulator
    waiting = [batch for batches in accumulator._batches.values() for batch in batches]
    for batch in (*waiting, *accumulator._pending_batches):
        if not batch.future.done():
            batch.future.set_exception(KafkaConnectionError("the producer was given up"))
            batch.future.exception()  # whoever still waits is told; nobody has to


async def _started(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    """Start a client, or end what was begun of it."""
    try:
        await client.start()
    except BaseException:
        await _end(client)
        raise


class KafkaTransport:
    """Fulfils :class:`global_sync.transport.base.Transport`."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._topics_exist = False
        self._closed = False
        self._creating = asyncio.Lock()
        self._producers: dict[tuple[str, int], _Kept[AIOKafkaProducer]] = {}
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}
        self._readers: set[_KafkaReader] = set()
        self.took: dict[Sends, Durations] = {}

    async def start(self) -> None:
        """Create missing topics if Kafka answers at once; otherwise that is done when it does.

        Raises LogNotKept.
        """
        try:
            async with asyncio.timeout(2 * self._options.request_timeout_ms / 1000):
                await self._ensure_topics()
        except _CLIENT_ERRORS as error:
            _log.warning("Kafka at %s does not answer yet: %r", self._options.bootstrap, error)

    async def send(
        self,
        topic: str,
        values: list[bytes],
        *,
        key: bytes | None = None,
        keys: Sequence[bytes] | None = None,
        timeout_ms: int = 3000,
    ) -> list[int]:
        if self._closed:
            raise TransportUnavailable("closed")
        keyed = list(zip(keys_for(values, key, keys), values, strict=True))
        kept, turn = self._lane(topic)
        producer: AIOKafkaProducer | None = None
        began_s = monotonic()
        try:
            async with asyncio.timeout(timeout_ms / 1000), turn:
                producer = await kept.get()
                offsets = await self._append(producer, topic, keyed)
        except (*_CLIENT_ERRORS, IllegalOperation) as error:
            if producer is not None:
                kept.drop(producer)
            self._sent(topic, began_s, type(error).__name__)
            raise TransportUnavailable(f"send to {topic}: {error!r}") from error
        except asyncio.CancelledError:
            if producer is not None:
                kept.drop(producer)  # its batch may still be in flight: the next must not overtake it
            raise
        self._sent(topic, began_s)
        return offsets

    def _sent(self, topic: str, began_s: float, error: str = "") -> None:
        """Topics are ours, and errors the few classes of the client."""
        sends = Sends("kafka", topic, error)
        self.took.setdefault(sends, Durations(SEND_BOUNDS_S)).record(monotonic() - began_s)

    def _lane(self, topic: str) -> tuple[_Kept[AIOKafkaProducer], asyncio.Lock]:
        """A producer with one batch in flight, and its turn: a free one, where there may be several."""
        lanes = [(topic, number) for number in range(IN_FLIGHT.get(topic, 1))]
        lane = next((one for one in lanes if one not in self._turns or not self._turns[one].locked()), lanes[0])
        if lane not in self._producers:
            self._producers[lane] = _Kept(lambda: self._connect_producer(topic), _end)
        return self._producers[lane], self._turns.setdefault(lane, asyncio.Lock())

    async def _append(
        self, producer: AIOKafkaProducer, topic: str, rest: list[tuple[bytes | None, bytes]]
    ) -> list[int]:
        offsets: list[int] = []
        while rest:
            batch = producer.create_batch()
            count = 0
            for key, value in rest:
                if batch.append(key=key, value=value, timestamp=None) is None:
                    break
                count += 1
            if count == 0:
                raise ValueError(f"a message of {len(rest[0][1])} bytes is larger than a batch may be")
            batch.close()
            sent = await producer.send_batch(batch, topic, partition=0)
            sent.add_done_callback(_heed)
            written = await asyncio.shield(sent)
            offsets.extend(range(written.offset, written.offset + count))
            rest = rest[count:]
        return offsets

    async def reader(self, topic: str, start: Start) -> Reader:
        if self._closed:
            raise TransportUnavailable("closed")
        reader = _KafkaReader(self, self._options, topic)
        try:
            await reader.place(start)
        except BaseException:
            await reader.close()
            raise
        self._readers.add(reader)
        return reader

    def behind(self) -> dict[str, int]:
        return furthest_behind((reader.topic, reader.behind()) for reader in self._readers)

    async def delete_before(self, topic: str, offset: int) -> None:
        async def delete(admin: AIOKafkaAdminClient) -> None:
            wanted = {TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)}
            await admin.delete_records(wanted, timeout_ms=self._options.request_timeout_ms)

        try:
            await self._administer(delete)
        except _CLIENT_ERRORS as error:
            raise TransportUnavailable(f"delete records of {topic}: {error!r}") from error

    async def close(self) -> None:
        self._closed = True
        ends: list[Coroutine[Any, Any, None]] = [reader.close() for reader in self._readers]
        ends += [kept.close() for kept in self._producers.values()]
        await asyncio.gather(*ends)
        self._readers.clear()
        self._producers.clear()

    def forget(self, reader: _KafkaReader) -> None:
        self._readers.discard(reader)

    # ---- making clients

    async def _connect_producer(self, topic: str) -> AIOKafkaProducer:
        await self._ensure_topics()
        producer = AIOKafkaProducer(
            **self._options.common(),
            acks="all",
            enable_idempotence=False,
            linger_ms=0,
            max_batch_size=_BATCH_BYTES,
        )
        await _started(producer)
        try:
            async with asyncio.timeout(self._options.request_timeout_ms / 1000):
                await producer.partitions_for(topic)
        except BaseException:
            await _end(producer)
            raise
        return producer

    async def connect_consumer(self) -> AIOKafkaConsumer:
        await self._ensure_topics()
        consumer = AIOKafkaConsumer(
            **self._options.common(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=self._options.fetch_wait_ms,
            max_partition_fetch_bytes=2 * 1024 * 1024,
        )
        await _started(consumer)
        return consumer

    async def _ensure_topics(self) -> None:
        if self._topics_exist:
            return
        async with self._creating:
            if not self._topics_exist:
                await self._administer(self._create_missing)
                await self._administer(_refuse_log_not_kept)
                self._topics_exist = True

    async def _create_missing(self, admin: AIOKafkaAdminClient) -> None:
        await create_missing(admin, self._options)

    async def _administer(self, work: Callable[[AIOKafkaAdminClient], Awaitable[None]]) -> None:
        admin = AIOKafkaAdminClient(**self._options.common())
        try:
            async with asyncio.timeout(4 * self._options.request_timeout_ms / 1000):
                await admin.start()
                await work(admin)
        finally:
            await _bounded(admin._client.close())  # its own close does nothing before it has started


async def create_missing(admin: AIOKafkaAdminClient, options: KafkaOptions) -> list[str]:
    """Make the topics that are not there; their names.  Raises KafkaError."""
    existing = set(await admin.list_topics())
    missing = [name for name in TOPICS if name not in existing]
    if not missing:
        return []
    topics = [
        NewTopic(
            name,
            num_partitions=1,
            replication_factor=options.replication,
            topic_configs=settings_of(name, options.min_insync),
        )
        for name in missing
    ]
    reply = await admin.create_topics(topics)
    already_there = 36  # another process was faster
    for name, code, *message in reply.topic_errors:
        if code not in (0, already_there):
            raise KafkaError(f"topic {name} was not created: {code} {message}")
    return missing


async def _refuse_log_not_kept(admin: AIOKafkaAdminClient) -> None:
    """A log that somebody made before us with the broker's defaults would lose what all regions stand on."""
    wanted = TOPICS[LOG]
    resource = ConfigResource(ConfigResourceType.TOPIC, LOG, configs=dict.fromkeys(wanted))
    try:
        answers = await admin.describe_configs([resource])
    except IncompatibleBrokerVersion as error:  # a stand-in for Kafka
        _log.warning("the settings of %s cannot be looked at: %r", LOG, error)
        return
    for answer in answers:
        for code, message, _, name, entries in answer.resources:
            if code != 0:
                _log.warning("the settings of %s cannot be looked at: %s %s", name, code, message)
                continue
            for setting, value, *_ in entries:
                if setting in wanted and value != wanted[setting]:
                    raise LogNotKept(
                        f"topic {LOG} has {setting}={value}, so records are dropped: set it to {wanted[setting]}"
                    )


class _KafkaReader:
    """One partition from ``next_offset`` on, over as many consumers as it takes."""

    def __init__(self, transport: KafkaTransport, options: KafkaOptions, topic: str) -> None:
        self.next_offset = 0
        self._transport = transport
        self._options = options
        self._partition = TopicPartition(topic, 0)
        self._kept: _Kept[AIOKafkaConsumer] = _Kept(self._connect, _end)
        self._placed = False
        self._silent_s = 0.0
        self._heard: tuple[int, int | None] = (0, None)

    async def place(self, start: Start) -> None:
        """Find out where ``start`` is.  Raises TransportUnavailable."""
        if isinstance(start, int):
            self.next_offset = start
        else:
            try:
                async with asyncio.timeout(self._options.silence_ms / 1000):
                    consumer = await self._kept.get()
                    ask = consumer.beginning_offsets if start == "earliest" else consumer.end_offsets
                    self.next_offset = (await ask([self._partition]))[self._partition]
                    consumer.seek(self._partition, self.next_offset)
            except _CLIENT_ERRORS as error:
                raise TransportUnavailable(f"read {self._partition.topic}: {error!r}") from error
        self._placed = True

    async def _connect(self) -> AIOKafkaConsumer:
        consumer = await self._transport.connect_consumer()
        consumer.assign([self._partition])
        if self._placed:
            consumer.seek(self._partition, self.next_offset)
        return consumer

    async def read(self, timeout_ms: int) -> list[Message]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        consumer: AIOKafkaConsumer | None = None
        records: list[Any] = []
        try:
            # aiokafka keeps its own timeout; ours is for the case that it does not.
            async with asyncio.timeout(timeout_ms / 1000 + (0.5 if self._kept.client else 0.0)):
                consumer = await self._kept.get()
                got = await consumer.getmany(self._partition, timeout_ms=timeout_ms, max_records=_MESSAGES_A_READ)
                records = got.get(self._partition, [])
        except OffsetOutOfRangeError as error:
            raise RecordsMissed(f"{self._partition.topic} no longer has offset {self.next_offset}") from error
        except _CLIENT_ERRORS as error:
            _log.debug("read of %s: %r", self._partition.topic, error)
        messages = [
            Message(self._partition.topic, record.offset, record.key, record.value or b"", record.timestamp)
            for record in records
        ]
        if messages:
            self.next_offset = messages[-1].offset + 1
        self._watch(consumer, bool(messages), loop.time() - began)
        return messages

    def _watch(self, consumer: AIOKafkaConsumer | None, got: bool, waited_s: float) -> None:
        """Even an empty answer of the broker is a sign of life.  Only time spent waiting here counts, so that
        a pause of this process is not taken for the broker's silence."""
        heard = (id(consumer), consumer.last_poll_timestamp(self._partition) if consumer else None)
        if got or (consumer is not None and heard != self._heard):  # a new connection is a sign of life too
            self._silent_s = 0.0
        else:
            self._silent_s += waited_s
        self._heard = heard
        if self._silent_s * 1000 > self._options.silence_ms:
            if consumer is not None:
                self._kept.drop(consumer)
            raise TransportUnavailable(f"nothing heard of {self._partition.topic} for {self._silent_s:.1f} s")

    @property
    def topic(self) -> str:
        return str(self._partition.topic)

    def behind(self) -> int | None:
        """By what the broker told with its last answer; None before the first."""
        consumer = self._kept.client
        end = consumer.highwater(self._partition) if consumer is not None else None
        return None if end is None else max(0, int(end) - self.next_offset)

    async def end_offset(self) -> int:
        try:
            async with asyncio.timeout(2 * self._options.request_timeout_ms / 1000):
                consumer = await self._kept.get()
                offsets = await consumer.end_offsets([self._partition])
                return int(offsets[self._partition])
        except _CLIENT_ERRORS as error:
            raise TransportUnavailable(f"end of {self._partition.topic}: {error!r}") from error

    async def close(self) -> None:
        self._transport.forget(self)
        await self._kept.close()
