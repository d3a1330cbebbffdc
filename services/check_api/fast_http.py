"""One connection, with a shorter way for the requests that nearly all are: well-formed checks and batches, and what
gateways ask of a request (``authorize_heads.py``).

Such a request goes from bytes to the limiter, and its answer by callback to bytes: no scope, no task, no future.
Whatever is not plainly one of them, or turns out to be wrong, goes on to the slow path (uvicorn's protocol, and
the ASGI application behind it) with its bytes as they came, before anything has been charged.  So there is one
place that refuses, and one behaviour.

    between requests --plain request--> answering --all answered--> between requests
    between requests --anything else--> slow       --its answer sent--> between requests
    answering        --anything else--> blocked    --all answered--> slow

- Answers leave in the order of their requests; what becomes ready in one turn of the loop leaves in one write.
- An incomplete request is held for a moment, since many callers send head and body apart; then it goes to the slow
  path, which knows how long to wait for the rest.
- *Blocked* nothing is read from the connection: until what was asked before it is answered, or the caller has read
  its answers.
- A caller that hangs up takes nothing with it but its answers.
- While the node drains, the last answer on a connection closes it: a caller that keeps connections finds another
  node while this one still listens, not by sending a check into a connection that is being closed.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from regional_limiter.model.decision import Answer, Check
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable
from regional_limiter.store.base import Allowed
from services.check_api.app import TOO_MANY_BATCHES, NodeApp
from services.check_api.authorize_heads import begins, may_begin
from services.check_api.batches import Outcomes
from services.check_api.bounded_http import BoundedHttp, encode_reply
from services.check_api.heads import BATCH_PATH, HEAD_BYTES_MOST, REQUEST_LINES, Head, without_trace
from services.check_api.replies import Reply
from services.tracing import Span, working_at

PIPELINED_MOST = 16
"""Requests of one connection that are being answered; uvicorn answers one at a time."""
HOLD_S = 0.05

_HEAD_SO_FAR = re.compile(
    rb"[\x20-\x7e]*(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\x20-\x7e\t]*)*(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]*|\r)?\Z"
)
"""What may still become a plain head: nothing that comes after it mends what is wrong in it."""

_LONGEST_LINE = max(map(len, REQUEST_LINES))


class _Asked:
    """A request that is being answered.  ``reply`` None: not yet."""

    __slots__ = ("checks", "head", "protocol", "reply", "started_s")

    def __init__(self, protocol: FastHttp, head: Head, checks: Sequence[Check]) -> None:
        self.protocol = protocol
        self.head = head
        self.checks = checks
        self.started_s = perf_counter()
        self.reply: Reply | None = None

    def decided(self, outcome: Answer | Allowed | Exception) -> None:
        protocol = self.protocol
        node = protocol.node
        response: bytes | None = None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if protocol.writes_at_once():
                response = node.response(self.checks[0], outcome, protocol.default_lines())
            if response is None:
                reply = node.decided(self.checks[0], outcome)
        except Exception as error:
            response, reply = None, node.failed(error)
        if response is None:
            self.answer(reply)
        else:
            node.counts.served("POST", self.head.path, 200, perf_counter() - self.started_s)
            protocol.write_only(response)

    def decided_batch(self, outcomes: Outcomes) -> None:
        node = self.protocol.node
        try:
            reply = node.decided_batch(self.checks, outcomes)
        except Exception as error:
            reply = node.failed(error)
        self.answer(reply)

    def answer(self, reply: Reply) -> None:
        self.reply = reply
        head, duration_s = self.head, perf_counter() - self.started_s
        self.protocol.node.counts.served(head.method, head.path, reply.status, duration_s)
        self.protocol.answered(reply)


class _Authorizing(_Asked):
    """What a gateway asks."""

    __slots__ = ()

    def decided(self, outcome: Answer | Allowed | Exception) -> None:
        node, asked = self.protocol.node, self.head.asked
        assert asked is not None
        try:
            reply = node.authorized(asked, outcome)
        except Exception as error:
            reply = node.failed(error)
        self.answer(reply)


class _Traced(_Asked):
    """One whose trace is kept."""

    __slots__ = ("span",)

    def __init__(self, protocol: FastHttp, head: Head, checks: Sequence[Check], span: Span) -> None:
        super().__init__(protocol, head, checks)
        self.span = span

    def decided(self, outcome: Answer | Allowed | Exception) -> None:
        tracing = self.protocol.node.tracing
        assert tracing is not None
        with working_at(self.span):
            tracing.told(self.checks[0], outcome)
            super().decided(outcome)
        if self.reply is None:
            self._ended(200)

    def decided_batch(self, outcomes: Outcomes) -> None:
        self.span.attributes["ratelimit.checks"] = len(outcomes)
        with working_at(self.span):
            super().decided_batch(outcomes)

    def answer(self, reply: Reply) -> None:
        super().answer(reply)
        self._ended(reply.status)

    def _ended(self, status: int) -> None:
        tracing = self.protocol.node.tracing
        assert tracing is not None
        head = self.head
        tracing.ended(self.span, head.method, head.path, status, perf_counter() - self.started_s)


class _TracedAuthorizing(_Traced, _Authorizing):
    """What a gateway asks, and its trace is kept."""

    __slots__ = ()


class FastHttp(BoundedHttp):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert isinstance(self.config.app, NodeApp)
        self.node = self.config.app
        self._asked: deque[_Asked] = deque()
        self._slow = False
        self._in_message = False
        self._blocked = False
        self._held = b""
        self._held_parts: list[bytes] = []
        """What came after ``_held``, not joined to it with every part of a large body."""
        self._missing_bytes = 0
        self._hold_timer: asyncio.TimerHandle | None = None
        self._write_due = False
        self._leaving = False
        self._answered_at_s = 0.0

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self._blocked:
            self._held += data
            return
        if self._held:
            self._held_parts.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return
            data = self._unhold()
        if self._slow and self._is_slow():
            super().data_received(data)
        else:
            self._slow = False
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Begin with every request that is whole."""
        at, end, heads = 0, len(data), self.node.heads
        while at < end:
            if len(self._asked) >= PIPELINED_MOST or self.flow.write_paused:
                self._block(data[at:])
                return
            body_at = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MOST) + 4
            head, traceparent = heads.known.get(data[at:body_at]), None
            if head is None:
                head, traceparent = self._new_head(data, at, body_at)
                if head is None:
                    return
            body_end = body_at + head.length
            if body_end > end:
                self._missing_bytes = body_end - end
                self._go_on(data[at:], plain=True)
                return
            if not self._begin(head, data[body_at:body_end], traceparent):
                self._go_on(data[at:], plain=False)
                return
            at = body_end

    def _new_head(self, data: bytes, at: int, body_at: int) -> tuple[Head | None, bytes | None]:
        """The head that begins at ``at`` and is not known as it stands, with its ``traceparent``.  None: there is
        none, and what is there was gone on with."""
        so_far = data[at:]
        of_gateway = False
        if not so_far.startswith(REQUEST_LINES):
            of_gateway = begins(so_far)
            if not of_gateway:
                short = len(so_far) < _LONGEST_LINE and any(line.startswith(so_far) for line in REQUEST_LINES)
                self._go_on(so_far, plain=short or may_begin(so_far))
                return None, None
        if body_at < 4:
            self._go_on(so_far, plain=len(so_far) < HEAD_BYTES_MOST and bool(_HEAD_SO_FAR.match(so_far)))
            return None, None
        plain, traceparent = without_trace(data[at:body_at])
        node = self.node
        head = node.authorize_heads.find(plain, self._peer()) if of_gateway else node.heads.find(plain)
        if head is None:
            self._go_on(so_far, plain=False)
        return head, traceparent

    def _peer(self) -> str | None:
        return self.client[0] if self.client else None

    def _begin(self, head: Head, body: bytes, traceparent: bytes | None) -> bool:
        """False: nothing has been asked, and the slow path shall answer."""
        node, limit = self.node, self.limit_concurrency
        if not (node.was_ready or node.is_ready()):
            return False
        if limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit):
            return False
        if not self._answered_at_s:
            self.has_asked()
        bodies = node.bodies
        try:
            if head.asked is not None:
                check = head.asked.check
            elif head.path == BATCH_PATH:
                checks = bodies.read_batch(body)
                return checks is not None and self._begin_batch(head, checks, traceparent)
            else:
                check = bodies.known.get(body) or bodies.read(body)
        except Exception:
            # Wrong, or not foreseen: the slow path reads it again, and says which.
            return False
        tracing, span = node.tracing, None
        # Nearly all are passed by, which takes one call.
        if tracing is not None and (traceparent is not None or not tracing.tracer.passes_by()):
            span = tracing.begin(head.method, head.path, traceparent, self.scheme or "http")
        if span is None and self._answered_at_once(head, check):
            return True
        asked = self._asked_of(head, check, span)
        self._asked.append(asked)
        try:
            if span is None:
                node.submit(check, asked.decided)
            else:
                with working_at(span):
                    node.submit(check, asked.decided)
        except (InvalidCheck, RulesUnavailable):
            self._asked.pop()
            if tracing is not None:
                tracing.given_up(span, traceparent)
            return False
        except Exception as error:
            asked.decided(error)
        return True

    def _answered_at_once(self, head: Head, check: Check) -> bool:
        """Whether the answer is known here, by a token lease, and nothing stands before it: then it is written."""
        node = self.node
        if self._asked or self._leaving or node.draining:
            return False
        started_s, status = perf_counter(), 200
        try:
            allowed = node.leased(check)
            if allowed is None:
                return False
            asked = head.asked
            response = None if asked else node.response(check, allowed, self.default_lines())
            if response is None:
                reply = node.authorized(asked, allowed) if asked else node.decided(check, allowed)
                response = encode_reply(reply, self.default_lines())
        except Exception as error:
            reply = node.failed(error)
            status, response = reply.status, encode_reply(reply, self.default_lines())
        node.counts.served(head.method, head.path, status, perf_counter() - started_s)
        self._write(response, 1)
        return True

    def _asked_of(self, head: Head, check: Check, span: Span | None) -> _Asked:
        if head.asked is None:
            return _Asked(self, head, (check,)) if span is None else _Traced(self, head, (check,), span)
        if span is None:
            return _Authorizing(self, head, (check,))
        return _TracedAuthorizing(self, head, (check,), span)

    def _begin_batch(self, head: Head, checks: Sequence[Check], traceparent: bytes | None) -> bool:
        tracing = self.node.tracing
        span = None if tracing is None else tracing.begin("POST", BATCH_PATH, traceparent, self.scheme or "http")
        asked = _Asked(self, head, checks) if span is None else _Traced(self, head, checks, span)
        self._asked.append(asked)
        with nullcontext() if span is None else working_at(span):
            try:
                taken = self.node.batches.submit(checks, asked.decided_batch)
            except Exception as error:
                asked.answer(self.node.failed(error))
            else:
                if not taken:
                    asked.answer(TOO_MANY_BATCHES)
        return True

    def _go_on(self, data: bytes, *, plain: bool) -> None:
        """What no request could be begun with.  ``plain``: it may become one when more of it is here."""
        if plain:
            self._held = data
            if self._hold_timer is None:
                self._hold_timer = self.loop.call_later(HOLD_S, self._give_up_holding)
        elif self._asked:
            self._block(data)
        else:
            self._to_slow(data)

    def _give_up_holding(self) -> None:
        self._hold_timer = None
        if not self.transport.is_closing():
            self._go_on(self._unhold(), plain=False)

    def _unhold(self) -> bytes:
        held, self._held = b"".join((self._held, *self._held_parts)), b""
        self._held_parts, self._missing_bytes = [], 0
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        return held

    def _block(self, data: bytes) -> None:
        self._held, self._blocked = data, True
        self.flow.pause_reading()

    def _unblock(self) -> None:
        """Go on where reading was stopped, if nothing stands in the way any more."""
        if not self._blocked or self._asked or self.flow.write_paused or self.transport.is_closing():
            return
        self._blocked = False
        self.flow.resume_reading()
        self._take(self._unhold())

    # ---- the slow path

    def _to_slow(self, data: bytes) -> None:
        self._slow = True
        super().data_received(data)

    def _is_slow(self) -> bool:
        """Whether the slow path is in the middle of something: a request may be answered before it is whole."""
        return self._in_message or self._last_words is not None or self._is_answering()

    def on_message_begin(self) -> None:
        self._in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.node.draining and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    # ---- writing

    def answered(self, reply: Reply) -> None:
        """A request has its reply: write it if it is alone, else with all that are ready in this turn."""
        if self.writes_at_once():
            self.write_only(encode_reply(reply, self.default_lines()))
        elif not self._write_due:
            self._write_due = True
            self.loop.call_soon(self._write_ready)

    def writes_at_once(self) -> bool:
        """Whether one request is being answered, and nothing depends on what is under way beside it."""
        return len(self._asked) == 1 and not (self._leaving or self._blocked or self.node.draining)

    def write_only(self, response: bytes) -> None:
        """Write the response to the only request that is being answered."""
        self._asked.clear()
        self._write(response, 1)

    def _write(self, responses: bytes, count: int) -> None:
        if not self.transport.is_closing():
            self.transport.write(responses)
        self.server_state.total_requests += count
        self._answered_at_s = self.loop.time()

    def _write_ready(self) -> None:
        self._write_due = False
        asked = self._asked
        if not asked or self.transport.is_closing():
            return
        lines = self.default_lines()
        parts = []
        is_last = False
        while asked and (reply := asked[0].reply) is not None:
            asked.popleft()
            is_last = (self._leaving or self.node.draining) and not asked and not self._held
            parts.append(encode_reply(reply, lines, close=is_last))
        if not parts:
            return
        self._write(parts[0] if len(parts) == 1 else b"".join(parts), len(parts))
        if is_last:
            self._leave()
        elif not asked:
            self._unblock()
            if self._leaving:
                self._leave()

    # ---- the end

    def timeout_keep_alive_handler(self) -> None:
        """The timer is set once, not with every answer; it may find that there was one since."""
        idle_s = self.loop.time() - self._answered_at_s
        if self._asked or self._held or idle_s < self.timeout_keep_alive:
            wait_s = self.timeout_keep_alive - (0 if self._asked or self._held else idle_s)
            self.timeout_keep_alive_task = self.loop.call_later(wait_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        self._leaving = True
        self._leave()

    def _leave(self) -> None:
        """Close when nothing is under way."""
        if self._asked:
            return
        if self._held:
            self._to_slow(self._unhold())
        super().shutdown()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unhold()
        self._asked.clear()
        super().connection_lost(exc)
