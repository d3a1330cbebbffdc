"""What is read of a line, format by format, and what is told to be none."""

from __future__ import annotations

import calendar
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rehearsal.attributes import Reading
from services.rehearsal.formats import FORMATS, Unreadable, found_format
from services.rehearsal.formats.json_lines import JsonLines
from services.rehearsal.formats.timestamps import Minutes

NGINX = (
    '203.0.113.9 - frank [10/Oct/2000:13:55:36 -0700] "POST /orders?a=1 HTTP/1.1" 201 2326'
    ' "https://example.com/start" "Mozilla/5.0 (X11) \\"q\\"" "198.51.100.7"'
)
COMMON = '203.0.113.9 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 -'
VHOST = 'shop.example.com:443 203.0.113.9 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 429 9 "-" "curl/8"'
ENVOY = (
    '[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "198.51.100.7, 203.0.113.9"'
    ' "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"'
)
ALB = (
    "https 2018-07-02T22:23:00.186641Z app/my-lb/50dc6c495c0c9188 203.0.113.9:2817 10.0.0.1:80 0.086 0.048"
    ' 0.037 200 200 0 57 "GET https://www.example.com:443/a/b?c=d HTTP/1.1" "curl/7.46.0"'
    " ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:1:targetgroup/t/7"
    ' "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:1:certificate/1" 1'
    ' 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1'
)
JSON = '{"time": "2016-04-15T20:17:00.310Z", "remote_addr": "203.0.113.9", "request_method": "GET", "uri": "/a?b"}'
CLF_MS = 971_211_336_000
QUOTE = COMMON.replace("/ HTTP/1.0", '/a\\"b HTTP/1.0')
ORIGIN = COMMON.replace("/ HTTP/1.0", "http://x.example/a?b HTTP/1.0")
FRANK = {"user": "frank", "query": "a=1", "forwarded_for": "198.51.100.7"}


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("name", "line", "time_ms", "resource", "more"),
    [
        ("combined", NGINX, CLF_MS, "POST /orders", FRANK),
        ("combined", COMMON, CLF_MS, "GET /", {"status": "200", "referer": None, "user": None, "bytes": None}),
        ("combined", QUOTE, CLF_MS, 'GET /a\\"b', {}),
        ("combined", ORIGIN, CLF_MS, "GET /a", {"query": "b"}),
        ("vhost", VHOST, CLF_MS, "GET /a", {"host": "shop.example.com", "user_agent": "curl/8", "referer": None}),
        ("envoy", ENVOY, ms("2016-04-15T20:17:00.310"), "POST /api/v1/locations", {"host": "locations"}),
        ("alb", ALB, ms("2018-07-02T22:22:48.364"), "GET /a/b", {"query": "c=d", "host": "www.example.com"}),
        ("json", JSON, ms("2016-04-15T20:17:00.310"), "GET /a", {"query": "b"}),
    ],
)  # fmt: skip
def test_a_line_is_read(name: str, line: str, time_ms: int, resource: str, more: dict[str, str | None]) -> None:
    known = FORMATS[name]
    assert found_format([line]) == name
    got_ms, fields = known.read(line)
    assert got_ms == time_ms
    found = Reading(["client_key", "resource", "ip", *more], known, {}).attributes(fields)
    assert found == {
        "client_key": "203.0.113.9",
        "ip": "203.0.113.9",
        "resource": resource,
        **{field: text for field, text in more.items() if text is not None},
    }


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("combined", "", "not of this format"),
        ("combined", COMMON.replace("GET / HTTP/1.0", "-"), "no request in it"),
        ("combined", COMMON.replace("GET / HTTP/1.0", "\\x16\\x03\\x01"), "no request in it"),
        ("combined", COMMON.replace("Oct", "Foo"), "no time that can be read"),
        ("combined", COMMON.replace("10/Oct", "32/Oct"), "no time that can be read"),
        ("envoy", ENVOY.replace("2016-04-15", "soon"), "no time that can be read"),
        ("alb", ALB.replace("GET https", "- https"), "no request in it"),
        ("json", "[1]", "no JSON object"),
        ("json", '{"time": 1, "path": ', "no JSON"),
        ("json", '{"path": "/", "method": "GET"}', "no time that can be read"),
        ("json", '{"time": true, "path": "/", "method": "GET"}', "no time that can be read"),
        ("json", '{"time": 1e300, "path": "/", "method": "GET"}', "no time that can be read"),
        ("json", '{"time": 1, "path": "/"}', "no request in it"),
        ("json", "[" * 60_000, "no JSON"),
    ],
)  # fmt: skip
def test_what_is_no_request_says_why(name: str, line: str, reason: str) -> None:
    with pytest.raises(Unreadable) as raised:
        FORMATS[name].read(line)
    assert raised.value.reason == reason


def test_a_map_says_where_json_has_what_the_rules_ask_for() -> None:
    mapped = {"time": "ts", "client_key": "user.id", "tier": "user.plan", "path": "http.path", "cost": "size"}
    known = JsonLines({name: mapped[name] for name in ("time", "client_key", "path")})
    line = json.dumps(
        {"ts": 1_700_000_000.5, "method": "PUT", "http.path": "/x", "size": 7, "user": {"id": 42, "plan": "gold"}}
    )
    time_ms, fields = known.read(line)
    reading = Reading(["client_key", "resource", "tier", "absent"], known, mapped)
    assert time_ms == 1_700_000_000_500
    assert reading.attributes(fields) == {"client_key": "42", "resource": "PUT /x", "tier": "gold"}
    assert reading.cost(fields) == 7


def test_json_may_name_client_and_resource_itself() -> None:
    time_ms, fields = FORMATS["json"].read(
        '{"ts": 1700000000123, "client_key": "acme", "resource": "jobs", "cost": 3}'
    )
    assert time_ms == 1_700_000_000_123
    assert Reading(["client_key", "resource"], FORMATS["json"], {}).attributes(fields) == {
        "client_key": "acme",
        "resource": "jobs",
    }


@given(st.sampled_from(sorted(FORMATS)), st.text(max_size=300) | st.sampled_from([NGINX, ENVOY, ALB, JSON]))
def test_any_text_is_a_request_or_unreadable(name: str, line: str) -> None:
    try:
        time_ms, fields = FORMATS[name].read(line)
    except Unreadable:
        return
    Reading(["client_key", "resource", "ip"], FORMATS[name], {}).attributes(fields)
    assert isinstance(time_ms, int)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_times_are_read_to_the_millisecond(moment: datetime, offset_min: int) -> None:
    minutes = Minutes()
    expected = round((moment - datetime(1970, 1, 1)).total_seconds() * 1000 - moment.microsecond % 1000 / 1000)
    assert minutes.iso_ms(moment.isoformat(timespec="microseconds") + "Z") == expected
    assert minutes.iso_ms(moment.isoformat(timespec="milliseconds")) == expected
    sign, zone = ("-" if offset_min < 0 else "+"), "{:02d}{:02d}".format(*divmod(abs(offset_min), 60))
    clf = f"{moment:%d}/{calendar.month_abbr[moment.month]}/{moment.year}:{moment:%H:%M:%S} {sign}{zone}"
    assert minutes.clf_ms(clf) == expected // 1000 * 1000 - offset_min * 60_000
