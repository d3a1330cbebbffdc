"""Which requests are traced, and what a ``traceparent`` may look like."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tracing import CURRENT, Context, Kind, Tracer, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = Context(1, 2, True), Context(1, 2, False)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"01-{TRACE}-{SPAN}-01-what a later version adds", True),
    ],
)
def test_a_traceparent_is_read(text: str, sampled: bool) -> None:
    assert read_traceparent(text) == Context(int(TRACE, 16), int(SPAN, 16), sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
    ],
)
def test_what_is_none_begins_a_trace_of_its_own(text: str) -> None:
    assert read_traceparent(text) is None


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read_again(trace_id: int, span_id: int, sampled: bool) -> None:
    context = Context(trace_id, span_id, sampled)
    assert read_traceparent(context.header()) == context


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.9])
def test_the_part_that_is_traced_is_the_ratio(ratio: float) -> None:
    tracer = Tracer(ratio, 10**9, now_s=lambda: 0.0, uniform=Random(7).random)
    traced = sum(tracer.wants(None) for _ in range(50_000))
    assert ratio * 0.9 < traced / 50_000 < ratio * 1.1


def test_the_callers_word_goes_before_the_ratio() -> None:
    none, all_of_them = Tracer(0.0, now_s=lambda: 0.0), Tracer(1.0, now_s=lambda: 0.0)
    assert not none.wants(None)
    assert none.wants(SAMPLED)
    assert all_of_them.wants(None)
    assert not all_of_them.wants(UNSAMPLED)


def test_who_sets_the_flag_on_every_request_gets_no_more_than_the_bound() -> None:
    now_s = 100.0
    tracer = Tracer(0.0, 5, now_s=lambda: now_s)
    assert [tracer.wants(SAMPLED) for _ in range(8)] == [True] * 5 + [False] * 3
    now_s = 101.0
    assert tracer.wants(SAMPLED)


def test_a_child_is_of_its_parents_trace_and_a_root_has_no_parent() -> None:
    tracer = Tracer(1.0)
    root = tracer.begin("root", Kind.SERVER)
    child = tracer.begin("child", Kind.CLIENT, root.context)
    assert (root.parent_id, child.parent_id) == (0, root.context.span_id)
    assert child.context.trace_id == root.context.trace_id
    assert child.context.span_id != root.context.span_id


def test_the_current_span_is_the_innermost_and_failures_are_noted() -> None:
    tracer = Tracer(1.0)

    def work() -> None:
        with tracer.span("outer") as outer:
            with tracer.span("inner") as inner:
                assert CURRENT.get() is inner
            assert CURRENT.get() is outer
            raise ValueError("no")

    with pytest.raises(ValueError):
        work()
    assert CURRENT.get() is None
    assert [(span.name, span.failed) for span in tracer.take()] == [("inner", None), ("outer", "ValueError")]
