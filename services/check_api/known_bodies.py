"""Bodies that have been read before, and the checks that they ask for.

Callers say the same of the same client again and again, and a check that is the same object is also planned only
once (:attr:`Check.asking`).  What carries an id of its own never comes again, and is not kept.  Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from regional_limiter.model.decision import Check
from services.check_api.bodies import BATCH_CHECKS_MOST, RawBatch, Refused, parse_check

BODIES_MOST: Final = 8192
BODY_BYTES_MOST: Final = 512
"""Of a body that is kept: with its check and what is asked for it, all of them take some 25 MB."""

_decode_batch = msgspec.json.Decoder(RawBatch).decode


class KnownBodies:
    """``known``: for whoever looks itself, before asking :meth:`read`."""

    def __init__(self) -> None:
        self.known: dict[bytes, Check] = {}

    def read(self, body: bytes) -> Check:
        """The check that ``body`` asks for.  Raises Refused."""
        check = parse_check(body)
        if check.request_id is None and len(body) <= BODY_BYTES_MOST:
            if len(self.known) >= BODIES_MOST:
                self.known.clear()
            self.known[body] = check
        return check

    def read_batch(self, body: bytes) -> list[Check] | None:
        """The checks of a batch, None if anything of it has to be looked at closely.  A few ms at most."""
        # An escape could hide a second list of checks; without one its name is there to be seen.
        if b"\\" in body or body.count(b'"checks"') != 1:
            return None
        known, read = self.known, self.read
        try:
            items = list(map(bytes, _decode_batch(body).checks))
            if len(items) > BATCH_CHECKS_MOST:
                return None
            return [known.get(item) or read(item) for item in items]
        except (msgspec.DecodeError, RecursionError, Refused):
            return None
