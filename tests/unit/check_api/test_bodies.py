"""What a request may say, and how a wrong one is named."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regional_limiter.model.decision import Check
from services.check_api.bodies import FAULTS_MOST, Refused, parse_batch, parse_check, parse_peek, wants_detail


def body(**fields: object) -> bytes:
    return json.dumps({"client_key": "user:42", "resource": "POST /orders", **fields}).encode()


def refused(raw: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_check(raw)
    return caught.value


def outcome(raw: bytes) -> Check | Refused:
    try:
        return parse_check(raw)
    except Refused as error:
        return error


def test_a_check_carries_client_key_and_resource_among_its_attributes() -> None:
    check = parse_check(body(attributes={"tier": "free"}, domain="shop", request_id="r1", cost=3))
    assert check.attributes == {"tier": "free", "client_key": "user:42", "resource": "POST /orders"}
    assert (check.domain, check.cost, check.request_id) == ("shop", 3, "r1")


def test_defaults_are_cost_1_in_the_default_domain_and_never_shared_between_checks() -> None:
    first, second = parse_check(body()), parse_check(body())
    assert (first.domain, first.cost, first.request_id) == ("default", 1, None)
    assert first.attributes is not second.attributes


@pytest.mark.parametrize("cost", ["-1", "-5", "1.5", "1.0", "1e2", '"1"', "true", "null", "2147483648", "9" * 5000])
def test_a_cost_that_is_no_integer_from_0_to_2_31_is_refused_by_name(cost: str) -> None:
    error = refused(b'{"client_key":"a","resource":"b","cost":' + cost.encode() + b"}")
    assert error.status == 422
    assert [fault.place for fault in error.faults] == ["cost"]


@pytest.mark.parametrize("cost", [0, 1, 2**31 - 1])
def test_the_ends_of_the_range_of_costs_are_in_it(cost: int) -> None:
    assert parse_check(body(cost=cost)).cost == cost


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"client_key": "x" * 1025}, "client_key"),
        ({"client_key": "é" * 513}, "client_key"),
        ({"client_key": 42}, "client_key"),
        ({"resource": "x" * 1025}, "resource"),
        ({"domain": "x" * 1025}, "domain"),
        ({"domain": None}, "domain"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"request_id": 7}, "request_id"),
        ({"attributes": {"tier": "x" * 1025}}, "attributes.tier"),
        ({"attributes": {"tier": 1}}, "attributes.tier"),
        ({"attributes": {"tier": None}}, "attributes.tier"),
        ({"attributes": {"client_key": "b"}}, "attributes.client_key"),
        ({"attributes": ["tier"]}, "attributes"),
    ],
)
def test_each_wrong_field_is_named(fields: dict[str, object], place: str) -> None:
    error = refused(body(**fields))
    assert error.status == 422
    assert [fault.place for fault in error.faults] == [place]


def test_exactly_the_longest_values_pass_in_bytes_not_characters() -> None:
    check = parse_check(body(client_key="é" * 512, attributes={"a": "x" * 1024}, request_id="r" * 128))
    assert len(check.attributes["client_key"].encode()) == 1024


def test_every_fault_is_told_at_once() -> None:
    error = refused(b'{"resorce":"b","cost":-1,"attributes":{"t":1}}')
    problems = {fault.place: fault.problem for fault in error.faults}
    assert set(problems) == {"resorce", "client_key", "resource", "cost", "attributes.t"}
    assert problems["resorce"] == "unknown field; did you mean resource?"
    assert problems["client_key"] == "is required"


@pytest.mark.parametrize("raw", [b"", b"{", b'{"client_key":"a",}', b"nope", b'{"a":1} x', b"\xef\xbb\xbf{}"])
def test_what_is_not_json_is_400(raw: bytes) -> None:
    assert refused(raw).status == 400


def test_nan_is_not_json_and_deep_nesting_is_no_crash() -> None:
    assert refused(b'{"client_key":"a","resource":"b","cost":NaN}').status == 400
    assert refused(b"[" * 60_000).status in (400, 422)


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null"])
def test_json_that_is_no_object_is_422(raw: bytes) -> None:
    assert refused(raw).status == 422


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80", b"\\ud800"])
def test_a_value_that_is_not_utf_8_is_named(value: bytes) -> None:
    error = refused(b'{"client_key":"' + value + b'","resource":"b"}')
    assert error.status == 422
    assert [(fault.place, fault.problem) for fault in error.faults] == [("client_key", "must be UTF-8")]


@pytest.mark.parametrize("key", ["a b", "a\n", "{x}", "u:1", "\U0001f600", "", "a\x00b"])
def test_jsocol_django_ratelimit_3_odd_keys_are_plain_keys(key: str) -> None:
    assert parse_check(body(client_key=key)).attributes["client_key"] == key


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_a_check_or_refused(raw: bytes) -> None:
    result = outcome(raw)
    assert isinstance(result, Check) or (result.status in (400, 422) and result.faults)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.sampled_from(["client_key", "resource", "cost", "attributes", "domain", "request_id", "x"]),
    JSON | st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)


@given(FIELDS)
def test_any_json_object_is_a_check_or_refused_by_its_fields(fields: dict[str, object]) -> None:
    result = outcome(json.dumps(fields).encode())
    if isinstance(result, Refused):
        assert result.status in (400, 422)
    else:
        assert type(result.cost) is int
        assert all(type(value) is str for value in result.attributes.values())


def test_a_peek_takes_its_identity_from_the_query() -> None:
    check, detail = parse_peek(b"client_key=u%3A1&resource=GET+%2Fx&attributes.tier=free&domain=shop&detail=1")
    assert check.attributes == {"client_key": "u:1", "resource": "GET /x", "tier": "free"}
    assert (check.cost, check.domain, detail) == (0, "shop", True)


@pytest.mark.parametrize(
    ("query", "place"),
    [
        (b"resource=b", "client_key"),
        (b"client_key=a&resource=b&cost=1", "cost"),
        (b"client_key=a&client_key=b&resource=b", "client_key"),
        (b"client_key=%FF&resource=b", "query"),
        (b"client_key=\xff&resource=b", "query"),
        (b"client_key=a&resource=b&clientkey=c", "clientkey"),
        (b"client_key=a&resource=b&attributes.resource=c", "attributes.resource"),
    ],
)
def test_a_wrong_query_is_refused_by_name(query: bytes, place: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_peek(query)
    assert [fault.place for fault in caught.value.faults] == [place]


def test_detail_is_one_parameter_among_others() -> None:
    assert wants_detail(b"x=2&detail=1")
    assert not wants_detail(b"")
    assert not wants_detail(b"detail=0&xdetail=1")


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"client_key":"a","client_key":"b","resource":"r"}', "client_key"),
        (b'{"client_key":"a","resource":"r","cost":0,"cost":1}', "cost"),
        (b'{"client_key":"a","resource":"r","domain":"x","domain":"x"}', "domain"),
        (b'{"client_key":"a","resource":"r","request_id":null,"request_id":null}', "request_id"),
        (b'{"client_key":"a","resource":"r","attributes":{},"attributes":{}}', "attributes"),
        (b'{"client_key":"a","resource":"r","attributes":{"t":"1","t":"2"}}', "attributes.t"),
        (b'{"client_key":"a","client\\u005fkey":"b","resource":"r"}', "client_key"),
        (b'{"client_key":"a","resource":"r","attributes":{"t":"1","\\u0074":"2"}}', "attributes.t"),
    ],
)
def test_a_field_that_is_given_twice_is_refused_by_name(raw: bytes, place: str) -> None:
    error = refused(raw)
    assert error.status == 422
    assert [(fault.place, fault.problem) for fault in error.faults] == [(place, "is given twice")]


@given(
    st.dictionaries(
        st.sampled_from(["cost", "domain", "request_id", "attributes"]),
        st.just(1) | st.none() | st.sampled_from(["x", 'a "quote" \\ é']),
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.booleans(),
)
def test_only_repetitions_are_taken_for_repetitions(
    fields: dict[str, object], attributes: dict[str, str], ascii_only: bool
) -> None:
    if "attributes" in fields:
        fields["attributes"] = attributes
    document = {"client_key": 'k"\\', "resource": "r", **fields}
    result = outcome(json.dumps(document, ensure_ascii=ascii_only).encode())
    if isinstance(result, Refused):
        assert not [fault for fault in result.faults if "twice" in fault.problem]


@pytest.mark.parametrize(
    "raw", [b"[" * 60_000, b'{"client_key":' * 10_000, b'{"client_key":"a","x":' + b"[" * 60_000]
)
def test_what_is_nested_too_deeply_is_told_so(raw: bytes) -> None:
    error = refused(raw)
    assert (error.status, error.faults[0].place) == (400, "body")
    assert "nested too deeply" in error.faults[0].problem


@pytest.mark.parametrize("domain", ["", "Shop", "a b", "x" * 65, "é", "a/b"])
def test_a_domain_that_no_rule_set_could_have_is_refused_by_name(domain: str) -> None:
    [in_batch] = parse_batch(b'{"checks":[' + body(domain=domain) + b"]}")
    assert isinstance(in_batch, Refused)
    with pytest.raises(Refused) as caught:
        parse_peek(urlencode({"client_key": "a", "resource": "b", "domain": domain}).encode())
    for error in (refused(body(domain=domain)), in_batch, caught.value):
        assert [fault.place for fault in error.faults] == ["domain"]


@given(st.lists(FIELDS.map(lambda fields: {"client_key": "a", "resource": "b"} | fields), max_size=5))
def test_a_batch_is_its_checks_one_by_one(items: list[dict[str, object]]) -> None:
    raw = [json.dumps(item).encode() for item in items]
    assume(not any(word in item for item in raw for word in (b"NaN", b"Infinity")))  # not JSON: no batch at all
    parsed = parse_batch(b'{"checks":[' + b",".join(raw) + b"]}")
    for one, alone in zip(parsed, map(outcome, raw), strict=True):
        if isinstance(one, Refused):
            assert isinstance(alone, Refused)
            assert (one.status, one.faults) == (alone.status, alone.faults)
        else:
            assert one == alone


def test_only_so_many_unknown_fields_are_told_since_telling_takes_time() -> None:
    error = refused(body(**{f"field{number}": 1 for number in range(5000)}))
    assert len(error.faults) == FAULTS_MOST
    error = refused(body(attributes={f"a{number}": 1 for number in range(3000)}))
    assert len(error.faults) == FAULTS_MOST


@pytest.mark.parametrize(
    ("raw", "status", "place"),
    [
        (b'{"checks":[' + b"[]," * 340_000 + b"[]]}", 422, "checks"),
        (b'{"checks":{"a":"' + b"x" * 70_000 + b'"}}', 422, "body"),
        (b'{"checks":"' + b"x" * 70_000, 400, "body"),
        (b'{"checks":' + b"[" * 70_000, 400, "body"),
        (b'{"checks":[' + body() + b'],"ch\\u0065cks":[]}', 422, "checks"),
    ],
)
def test_a_large_body_that_is_no_batch_is_refused_without_reading_it_closely(
    raw: bytes, status: int, place: str
) -> None:
    with pytest.raises(Refused) as caught:
        parse_batch(raw)
    assert (caught.value.status, [fault.place for fault in caught.value.faults]) == (status, [place])


def test_a_check_in_a_batch_is_no_longer_than_one_alone() -> None:
    long, good = parse_batch(b'{"checks":[' + body(x="y" * 70_000) + b"," + body() + b"]}")
    assert isinstance(long, Refused)
    assert [fault.problem for fault in long.faults] == ["a check may have at most 65,536 bytes"]
    assert isinstance(good, Check)
