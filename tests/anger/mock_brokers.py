"""librdkafka's mock brokers: a cluster of Kafka in this process that errs when it is told to.

The library lies in the package confluent-kafka, whose own classes do not reach its mock: hence ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import files

from global_sync.transport.topics import TOPICS

PRODUCE, FETCH, LIST_OFFSETS, METADATA = range(4)
_PRODUCER, _TEXT = 0, 512


def _library() -> ctypes.CDLL:
    path = next(path for path in files("confluent-kafka") or () if path.name.startswith("librdkafka"))
    library = ctypes.CDLL(str(path.locate()))
    for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockBrokers:
    """``count`` brokers with our topics; the partition of each is led by the first unless told otherwise."""

    def __init__(self, count: int = 3) -> None:
        self._library = library = _library()
        text = ctypes.create_string_buffer(_TEXT)
        conf = ctypes.c_void_p(library.rd_kafka_conf_new())
        self._client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, text, _TEXT))
        assert self._client, text.value
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._client, count))
        assert self._cluster, "no mock cluster"
        for topic in TOPICS:
            self._call("topic_create", topic.encode(), 1, count)
            self.lead(topic, 1)

    @property
    def bootstrap(self) -> str:
        return bytes(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)).decode()

    def lead(self, topic: str, broker: int) -> None:
        self._call("partition_set_leader", topic.encode(), 0, broker)

    def err(self, api: int, errors: Sequence[int]) -> None:
        """The next requests of that kind, to any broker, are answered so."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api), ctypes.c_size_t(len(errors)), codes
        )

    def forget_errors(self, api: int) -> None:
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(api))

    def down(self, broker: int) -> None:
        self._call("broker_set_down", broker)

    def up(self, broker: int) -> None:
        self._call("broker_set_up", broker)

    def delete_before(self, topic: str, offset: int) -> None:
        self._call("partition_delete_records", topic.encode(), 0, ctypes.c_int64(offset))

    def slow(self, broker: int, rtt_ms: int) -> None:
        self._call("broker_set_rtt", broker, rtt_ms)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)
        assert error == 0, f"{name}{arguments}: {error}"


@contextmanager
def mock_brokers(count: int = 3) -> Iterator[MockBrokers]:
    brokers = MockBrokers(count)
    try:
        yield brokers
    finally:
        brokers.close()
