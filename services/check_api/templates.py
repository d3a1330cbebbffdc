"""Answers as bytes, of which only the numbers are put in: for those that nearly all are.

What an answer says beside its numbers is the same for every check of a rule.  So it is written once, by the
functions that write every other answer (``answers.py``, ``headers.py``), and the places of its numbers are looked
for in what they wrote.  An answer that is not of this kind has no template, and is written by them.  Pure.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from regional_limiter.model.decision import Answer, Reason, RuleVerdict, Verdict
from regional_limiter.model.rule import Rule
from regional_limiter.plan import Asking
from regional_limiter.rules.grammar import RULES_MOST
from regional_limiter.store.base import Allowed
from services.check_api.answers import encode_answer
from services.check_api.bounded_http import encode_reply
from services.check_api.counts import ALLOWED, Series
from services.check_api.headers import (
    ITEMS_MOST,
    LARGEST_FIELD_INTEGER,
    HeaderItem,
    HeaderMode,
    LegacyReset,
    Lines,
    allowed_format,
    answer_lines,
)
from services.check_api.replies import JSON_LINES, Reply, ok

TEMPLATES_MOST = RULES_MOST
"""Of rules with their limits: those of a whole set, so that one that is met in turn is not written anew each time.
Each takes about 1 KiB."""

MET_MOST = 2 * RULES_MOST
"""Of what is kept for rules that are met together, in rules: a whole set, each met alone, or beside one for all."""

ORDERS_MOST = 24
"""Of the same rules: all of four."""

HEADS_BYTES_MOST = 32_000_000
"""Of all orders of all rules that are met together, about."""
HEAD_BYTES = 500
"""What is kept with each, about, beside its text."""

_OK, _LIMITED, _EPOCH = Reason.OK, Reason.LIMITED, LegacyReset.EPOCH
_BOTH, _LEGACY, _DRAFT_11 = HeaderMode.BOTH, HeaderMode.LEGACY, HeaderMode.DRAFT_11
_HASH_BYTES: Final = 8
_PLACES: Final = tuple(range(8))
"""Of the values that go into templates (:func:`_values`)."""


Said = tuple[Series, bytes]
"""A whole response, or a part of one, and the series of the counts that it belongs to."""


class _Template(NamedTuple):
    """``response``, ``body``: texts with a place for each number.  ``of_response``, ``of_body``: take from the
    values (see :func:`_values` and :func:`_body_values`) those that go there, in order.  ``fixed_bytes``: of the
    body without numbers."""

    response: bytes
    of_response: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    body: bytes
    of_body: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    fixed_bytes: int


class _Marks(NamedTuple):
    """Numbers that stand for others where a text is looked through for their places."""

    left: int
    reset_ms: int
    retry_ms: int
    key_hash: bytes
    default_lines: bytes = b"\0default\0"

    @property
    def values(self) -> tuple[bytes, ...]:
        """How they are written, in the order of :func:`_values`."""
        return (
            self.default_lines,
            b2a_base64(self.key_hash, newline=False),
            b"%d" % self.left,
            b"%d" % -(-self.reset_ms // 1000),
            b"\0length\0",
            b"%d" % self.reset_ms,
            b"%d" % -(-self.retry_ms // 1000),
            b"%d" % self.retry_ms,
        )


_MARKS: Final = (
    _Marks(987_654_321_012_345, 876_543_210_123_456, 765_432_101_234_567, b"\x91\x3c\x5f\xe0\x7a\x44\xd2\x18"),
    _Marks(345_678_909_876_543, 456_789_098_765_432, 567_890_987_654_321, b"\x2d\xb6\x09\x73\xc8\x1e\xa5\xf4"),
)
"""Two of each: a rule whose own name or limit looks like one of them has no template."""


_Head = tuple[bytes, Callable[[tuple[Any, ...]], tuple[Any, ...]]]
"""A format, and what takes the values that go there, in order, from: the server's own headers, the hashes of all
rules, what is left of each, seconds to the reset of each, the length of the body."""


class _Room:
    """What all heads and forms may take in memory.  Who has some is kept in ``having``, to give them up."""

    __slots__ = ("bytes_left", "bytes_most", "having")

    def __init__(self, bytes_most: int) -> None:
        self.bytes_most = self.bytes_left = bytes_most
        self.having: set[_Rules] = set()

    def take(self, rules: _Rules, head: _Head) -> None:
        """Room for ``head``, which ``rules`` keeps from now on; all others go if there is none."""
        taken = len(head[0]) + HEAD_BYTES
        if taken > self.bytes_left:
            for other in self.having:
                other.forget()
            self.having = set()
            self.bytes_left = self.bytes_most
        self.having.add(rules)
        self.bytes_left -= taken

    def give_back(self, heads: dict[tuple[int, ...], _Head]) -> None:
        self.bytes_left += sum(len(text) + HEAD_BYTES for text, _ in heads.values())
        heads.clear()


class _Rules:
    """What the answers that these rules allow together have in common, whoever asks.

    ``bodies``: formats of what is left and ms to the reset, by the rule that they name.  ``heads``: of all of them,
    by the order in which headers name them; ``forms``: of their rate limit headers alone.  ``alone``: the one head
    of a rule that is met alone, where both kinds of headers are sent: nearly all answers have it.  ``room``: that
    the others take theirs of, since there are many orders and askings keep what they were told by.
    """

    __slots__ = ("alone", "bodies", "forms", "heads", "in_order", "items", "mode", "room", "series")

    def __init__(self, rules: Sequence[Rule], bodies: list[bytes], mode: HeaderMode, room: _Room) -> None:
        self.series: list[Series] = [(rule.domain, rule.id, ALLOWED, _OK._value_) for rule in rules]
        self.items = [HeaderItem.of(rule.id, rule.capacity, rule.window_ms) for rule in rules]
        self.bodies = bodies
        self.mode = mode
        self.room = room
        self.in_order = tuple(range(len(rules)))
        self.heads: dict[tuple[int, ...], _Head] = {}
        self.forms: dict[tuple[int, ...], _Head] = {}
        self.alone = self._written_head(self.in_order)[0] if len(rules) == 1 and mode is _BOTH else None

    def forget(self) -> None:
        """Heads and forms, which are written anew when they are asked for."""
        self.heads.clear()
        self.forms.clear()

    def response(
        self, left: list[int], resets_ms: list[int], hashes: Sequence[bytes], default_lines: Lines
    ) -> Said:
        """The response where all allow; ``hashes``: of their keys, in base64."""
        order = self.in_order
        if len(order) != 1 and left != sorted(left):
            order = tuple(sorted(order, key=left.__getitem__))
        closest = order[0]
        body = self.bodies[closest] % (left[closest], resets_ms[closest])
        resets_s = [-(-reset_ms // 1000) for reset_ms in resets_ms]
        head, in_its_order = self.heads.get(order) or self.head(order)
        values = in_its_order((default_lines, *hashes, *left, *resets_s, len(body)))
        return self.series[closest], head % values + body

    def head(self, order: tuple[int, ...]) -> _Head:
        """The head of a response that names the rules in ``order``, kept."""
        if len(self.heads) >= ORDERS_MOST:
            self.room.give_back(self.heads)
        told = self._written_head(order)
        self.room.take(self, told)
        self.heads[order] = told
        return told

    def _written_head(self, order: tuple[int, ...]) -> _Head:
        lines = self._lines(order)
        # A length of no digits, as no body has it.
        head = encode_reply(Reply(200, lines + JSON_LINES.replace(b"%", b"%%"), b""), b"%b")
        head = head.replace(b"content-length: 0\r\n", b"content-length: %d\r\n")
        length = 1 + 3 * len(self.in_order)
        return head, itemgetter(0, *self._places(order), length)

    def lines(self, left: list[int], resets_ms: list[int], hashes: Sequence[bytes]) -> Said:
        """The rate limit headers alone, of an answer without a body."""
        order = self.in_order
        if len(order) != 1 and left != sorted(left):
            order = tuple(sorted(order, key=left.__getitem__))
        form, in_its_order = self.forms.get(order) or self._form(order)
        resets_s = [-(-reset_ms // 1000) for reset_ms in resets_ms]
        return self.series[order[0]], form % in_its_order((None, *hashes, *left, *resets_s))

    def _form(self, order: tuple[int, ...]) -> _Head:
        if len(self.forms) >= ORDERS_MOST:
            self.room.give_back(self.forms)
        places = self._places(order)
        told = (self._lines(order), itemgetter(*places) if places else lambda values: ())
        self.room.take(self, told)
        self.forms[order] = told
        return told

    def _lines(self, order: tuple[int, ...]) -> bytes:
        return allowed_format([self.items[place] for place in order], self.mode)

    def _places(self, order: tuple[int, ...]) -> list[int]:
        """Where the values of :meth:`_lines` stand among those of a head."""
        rules, mode = len(self.in_order), self.mode
        first_left, first_s = 1 + rules, 1 + 2 * rules
        places: list[int] = []
        if mode is _BOTH or mode is _DRAFT_11:
            places += [1 + place for place in order]
            for place in order:
                places += (first_left + place, first_s + place)
        if mode is _BOTH or mode is _LEGACY:
            places += (first_left + order[0], first_s + order[0])
        return places


class _Told(NamedTuple):
    """What is kept with an asking.  ``owner``: who keeps it.  ``rules`` None: its answers have no template.
    ``hashes``: of its keys, in base64."""

    owner: Templates
    rules: _Rules | None
    hashes: tuple[bytes, ...]


class Templates:
    """``legacy_reset``: an answer that tells a time of day has no template."""

    def __init__(self, mode: HeaderMode, legacy_reset: LegacyReset) -> None:
        self._mode = mode
        self._has_templates = legacy_reset is not _EPOCH
        self._rules: dict[tuple[tuple[str, str, int, int | None], ...], _Rules] = {}
        self._met = 0
        self._room = _Room(HEADS_BYTES_MOST)
        self._known: dict[tuple[str, int, int | None, bool, bool], _Template | None] = {}

    def response(self, answer: Answer, default_lines: Lines) -> bytes | None:
        """The whole response that tells ``answer``; None: it has no template."""
        template = self._of(answer)
        if template is None:
            return None
        response, of_response, _, _, fixed_bytes = template
        return response % of_response(_values(answer, default_lines, fixed_bytes))

    def body(self, answer: Answer) -> bytes | None:
        """The body that tells ``answer``; None: it has no template."""
        template = self._of(answer)
        if template is None:
            return None
        return template.body % template.of_body(
            _body_values(answer.remaining, answer.reset_after_ms, answer.retry_after_ms)
        )

    def response_to(self, allowed: Allowed, default_lines: Lines) -> Said | None:
        """As :meth:`response`, of an allowance that no answer has been made of yet."""
        told: _Told | None = allowed.asking.told
        if told is None or told.owner is not self:
            told = self._learnt_of(allowed.asking)
        _, rules, hashes = told
        left, resets_ms = allowed.left, allowed.reset_after_ms
        if rules is None:
            return None
        if rules.alone is not None:
            one_left, reset_ms = left[0], resets_ms[0]
            if one_left > LARGEST_FIELD_INTEGER or reset_ms > LARGEST_FIELD_INTEGER:
                return None
            body = rules.bodies[0] % (one_left, reset_ms)
            reset_s = -(-reset_ms // 1000)
            values = (default_lines, hashes[0], one_left, reset_s, one_left, reset_s, len(body))
            return rules.series[0], rules.alone % values + body
        if max(left) > LARGEST_FIELD_INTEGER or max(resets_ms) > LARGEST_FIELD_INTEGER:
            return None
        return rules.response(left, resets_ms, hashes, default_lines)

    def body_to(self, allowed: Allowed) -> Said | None:
        """As :meth:`body`, of an allowance that no answer has been made of yet."""
        told: _Told | None = allowed.asking.told
        if told is None or told.owner is not self:
            told = self._learnt_of(allowed.asking)
        rules = told.rules
        left, resets_ms = allowed.left, allowed.reset_after_ms
        if rules is None or max(left) > LARGEST_FIELD_INTEGER or max(resets_ms) > LARGEST_FIELD_INTEGER:
            return None
        closest = 0 if len(left) == 1 else left.index(min(left))
        return rules.series[closest], rules.bodies[closest] % (left[closest], resets_ms[closest])

    def lines_to(self, allowed: Allowed) -> Said | None:
        """The rate limit headers of an answer without a body, of an allowance that no answer was made of yet."""
        told: _Told | None = allowed.asking.told
        if told is None or told.owner is not self:
            told = self._learnt_of(allowed.asking)
        rules, left, resets_ms = told.rules, allowed.left, allowed.reset_after_ms
        if rules is None or max(left) > LARGEST_FIELD_INTEGER or max(resets_ms) > LARGEST_FIELD_INTEGER:
            return None
        return rules.lines(left, resets_ms, told.hashes)

    def _learnt_of(self, asking: Asking) -> _Told:
        steps = asking.plan.steps
        met = tuple(step.rule for step in steps)
        shown = all(step.rule.headers and len(step.key_hash) == _HASH_BYTES for step in steps)
        known = tuple((rule.domain, rule.id, rule.capacity, rule.window_ms) for rule in met)
        rules = self._rules.get(known)
        if rules is None and shown and len(steps) <= ITEMS_MOST:
            templates = [self._of_rule(rule.id, rule.capacity, rule.window_ms) for rule in met]
            bodies = [template.body for template in templates if template and template.of_body(_PLACES) == (2, 5)]
            if len(bodies) == len(templates):
                if self._met + len(met) > MET_MOST:
                    self._rules.clear()
                    self._met = 0
                rules = self._rules[known] = _Rules(met, bodies, self._mode, self._room)
                self._met += len(met)
        hashes = tuple(b2a_base64(step.key_hash, newline=False) for step in steps)
        told = asking.told = _Told(self, rules if shown else None, hashes)
        return told

    def _of_rule(self, rule: str, limit: int, window_ms: int | None) -> _Template | None:
        """Of the answer that ``rule`` allows."""
        known = (rule, limit, window_ms, True, False)
        return self._known[known] if known in self._known else self._learnt(known)

    def _of(self, answer: Answer) -> _Template | None:
        """Of an answer of one rule that allows at once, or denies for a while."""
        verdicts = answer.verdicts
        if len(verdicts) != 1 or answer.wait_ms or answer.lease_id is not None:
            return None
        reason, allowed = answer.reason, answer.allowed
        if reason is not (_OK if allowed else _LIMITED):
            return None
        left, retry_ms = answer.remaining, answer.retry_after_ms
        if left is None or retry_ms is None or not 0 <= left <= LARGEST_FIELD_INTEGER or answer.reset_after_ms < 0:
            return None
        if answer.reset_after_ms > LARGEST_FIELD_INTEGER or not (retry_ms > 0) is not allowed:
            return None
        (item,) = verdicts
        known = (item.rule, item.limit, item.window_ms, allowed, answer.degraded)
        try:
            template = self._known[known]
        except KeyError:
            template = self._learnt(known)
        if template is None or len(item.key_hash) != _HASH_BYTES or not item.in_headers:
            return None
        return template

    def _learnt(self, known: tuple[str, int, int | None, bool, bool]) -> _Template | None:
        if len(self._known) >= TEMPLATES_MOST:
            self._known.clear()
        template = None
        if self._has_templates:
            first, second = (self._made(*known, marks) for marks in _MARKS)
            template = _compiled(*first) if first == second else None
        self._known[known] = template
        return template

    def _made(
        self, rule: str, limit: int, window_ms: int | None, allowed: bool, degraded: bool, marks: _Marks
    ) -> tuple[bytes, tuple[int, ...], bytes, tuple[int, ...], int]:
        """(response, which values, body, which values, bytes of the body beside them)."""
        retry_ms = 0 if allowed else marks.retry_ms
        reason = _OK if allowed else _LIMITED
        verdict = Verdict(allowed, reason, marks.left, retry_ms, marks.reset_ms)
        told = (RuleVerdict(rule, limit, verdict, window_ms, marks.key_hash),)
        answer = Answer(allowed, reason, limit, marks.left, retry_ms, marks.reset_ms, rule, degraded, told)
        body = encode_answer(answer)
        response = encode_reply(ok(body, answer_lines(answer, self._mode)), marks.default_lines)
        head, end, _ = response.partition(b"\r\n\r\n")
        head = head.replace(b"content-length: %d" % len(body), b"content-length: \0length\0")
        body_text, of_body = _places(body, marks, b"%d")
        response_text, of_response = _places(head + end + body, marks, b"%b")
        numbers_bytes = sum(len(marks.values[place]) for place in of_body)
        return response_text, of_response, body_text, of_body, len(body) - numbers_bytes


def _places(text: bytes, marks: _Marks, kind: bytes) -> tuple[bytes, tuple[int, ...]]:
    """``text`` as a format of values of one ``kind``, and which of them go where its marks were."""
    values = marks.values
    found: list[int] = []

    def place(match: re.Match[bytes]) -> bytes:
        found.append(values.index(match[0]))
        return kind

    # The longest first: one may begin as another does.
    longest_first = sorted(values, key=lambda mark: -len(mark))
    any_mark = b"|".join(map(re.escape, longest_first))
    return re.sub(any_mark, place, text.replace(b"%", b"%%")), tuple(found)


def _compiled(
    response: bytes, of_response: tuple[int, ...], body: bytes, of_body: tuple[int, ...], fixed_bytes: int
) -> _Template | None:
    # An itemgetter of one place gives no tuple.
    if len(of_response) < 2 or len(of_body) < 2:
        return None
    return _Template(response, itemgetter(*of_response), body, itemgetter(*of_body), fixed_bytes)


def _body_values(left: int | None, reset_ms: int, retry_ms: int | None) -> tuple[int | None, ...]:
    """What is put into the template of a body: numbers, in the places of :func:`_values`."""
    return None, None, left, None, None, reset_ms, None, retry_ms


def _values(answer: Answer, default_lines: Lines, fixed_bytes: int) -> tuple[bytes, ...]:
    """What is put into a template, each as it is written: the server's own headers, the hash of the key, what is
    left, seconds to the reset, the length of the body, milliseconds to the reset; of a denial, seconds and
    milliseconds to the next try.  ``fixed_bytes``: of the body without its numbers."""
    left, reset_ms, retry_ms = answer.remaining or 0, answer.reset_after_ms, answer.retry_after_ms
    left_text, reset_text = b"%d" % left, b"%d" % reset_ms
    reset_s = b"%d" % -(-reset_ms // 1000)
    key_hash = b2a_base64(answer.verdicts[0].key_hash, newline=False)
    if not retry_ms:
        length = b"%d" % (fixed_bytes + len(left_text) + len(reset_text))
        return (default_lines, key_hash, left_text, reset_s, length, reset_text)
    retry_text = b"%d" % retry_ms
    length = b"%d" % (fixed_bytes + len(left_text) + len(reset_text) + len(retry_text))
    return (
        default_lines,
        key_hash,
        left_text,
        reset_s,
        length,
        reset_text,
        b"%d" % -(-retry_ms // 1000),
        retry_text,
    )
