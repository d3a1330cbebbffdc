"""A body that comes again is the check that it was; what must not be kept is read each time."""

from __future__ import annotations

import json

import pytest

from services.check_api.bodies import parse_plain_batch
from services.check_api.known_bodies import BODIES_MOST, BODY_BYTES_MOST, KnownBodies


def body_of(key: str = "a", **more: object) -> bytes:
    return json.dumps({"client_key": key, "resource": "r", **more}).encode()


def test_a_body_that_comes_again_is_the_same_check() -> None:
    bodies = KnownBodies()
    check = bodies.read(body_of())
    assert bodies.known[body_of()] is check
    assert bodies.read_batch(b'{"checks":[%b,%b]}' % (body_of(), body_of("b")))[0] is check  # type: ignore[index]


@pytest.mark.parametrize("body", [body_of(request_id="once"), body_of("x" * BODY_BYTES_MOST)])
def test_what_comes_once_or_is_long_is_not_kept(body: bytes) -> None:
    bodies = KnownBodies()
    bodies.read(body)
    assert not bodies.known


def test_what_is_kept_is_bounded() -> None:
    bodies = KnownBodies()
    for number in range(BODIES_MOST + 1):
        bodies.read(body_of(str(number)))
    assert len(bodies.known) == 1


@pytest.mark.parametrize(
    "batch",
    [
        b'{"checks":[]}',
        b'{"checks": [ %b , %b ] }' % (body_of(), body_of("b", cost=3, attributes={"t": "x"})),
        b'{"checks":[%b]}' % body_of(request_id="r1"),
    ],
)
def test_a_plain_batch_is_read_as_if_nothing_were_known(batch: bytes) -> None:
    bodies = KnownBodies()
    for _ in range(2):
        assert bodies.read_batch(batch) == parse_plain_batch(batch)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"[]",
        b'{"checks":{}}',
        b'{"checks":[{}]}',
        b'{"checks":[1]}',
        b'{"checks":[],"checks":[]}',
        b'{"checks":[],"\\u0063hecks":[]}',
        b'{"checks":[],"more":1}',
        b'{"checks":[%b]}' % body_of(cost=-1),
        b'{"checks":[%b]}' % b'{"client_key":"a","client_key":"b","resource":"r"}',
        b'{"checks":[%b]}' % b",".join([body_of()] * 1001),
        b'{"checks":' + b"[" * 3000 + b"]" * 3000 + b"}",
    ],
)
def test_a_batch_with_a_fault_is_left_to_the_slow_path(batch: bytes) -> None:
    bodies = KnownBodies()
    bodies.read(body_of())
    for _ in range(2):
        assert bodies.read_batch(batch) is None
