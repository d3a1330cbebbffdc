"""Who may do what: bearer tokens with a role and domains, as the history of changes tells them.  Pure.

A token is known by its hash alone; the token itself is shown once, to whoever made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from global_sync.changes import PUT_TOKEN, REVOKE_TOKEN, History

EVERY_DOMAIN = "*"
TOKENS_MOST = 10_000


class Role(StrEnum):
    """``reader`` sees, ``operator`` changes rules, ``admin`` also says who may."""

    READER = "reader"
    OPERATOR = "operator"
    ADMIN = "admin"


_RANK = {Role.READER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.  ``domains``: where the role counts; ``EVERY_DOMAIN`` in it: everywhere."""

    name: str
    role: Role
    domains: frozenset[str] = frozenset((EVERY_DOMAIN,))
    is_named: bool = True
    """False: nobody asked who it is, so the author of a change is the caller's word."""

    @property
    def everywhere(self) -> bool:
        return EVERY_DOMAIN in self.domains

    def may(self, role: Role, domain: str | None = None) -> bool:
        """``domain`` None: what belongs to no domain, which needs the role everywhere."""
        known = self.everywhere or (domain is not None and domain in self.domains)
        return known and _RANK[self.role] >= _RANK[role]


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is kept.  Times in milliseconds since 1970; ``expires_at_ms`` None: it does not."""

    id: str
    name: str
    hash: str
    role: Role
    domains: frozenset[str]
    created_at_ms: int
    created_by: str
    expires_at_ms: int | None

    def principal(self) -> Principal:
        return Principal(self.name, self.role, self.domains)

    def is_over(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def shown(self, now_ms: int) -> dict[str, Any]:
        """For lists: everything but the hash."""
        return {
            "id": self.id,
            "name": self.name,
            "role": self.role.value,
            "domains": sorted(self.domains),
            "created_at_ms": self.created_at_ms,
            "created_by": self.created_by,
            "expires_at_ms": self.expires_at_ms,
            "expired": self.is_over(now_ms),
        }


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Tokens:
    """Fold of the history: the tokens that have not been revoked."""

    def __init__(self) -> None:
        self._by_id: dict[str, Token] = {}
        self._by_hash: dict[str, Token] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def take(self, entry: History) -> None:
        """An entry of the history, each once and in their order.  Raises ValueError for a malformed one."""
        if not entry.accepted or entry.token is None:
            return
        if entry.kind == PUT_TOKEN:
            token = _token_of(entry.token, entry)
            self._drop(token.id)
            self._by_id[token.id] = self._by_hash[token.hash] = token
        elif entry.kind == REVOKE_TOKEN:
            self._drop(str(entry.token.get("id")))

    def _drop(self, token_id: str) -> None:
        token = self._by_id.pop(token_id, None)
        if token is not None:
            self._by_hash.pop(token.hash, None)

    def get(self, token_id: str) -> Token | None:
        return self._by_id.get(token_id)

    def all(self) -> Iterable[Token]:
        """The newest first."""
        return sorted(self._by_id.values(), key=lambda token: (-token.created_at_ms, token.id))

    def find(self, text: str, now_ms: int) -> Principal | None:
        """Whose token this is; None: nobody's, or it is over."""
        token = self._by_hash.get(hash_of(text))
        return None if token is None or token.is_over(now_ms) else token.principal()


def _token_of(said: Mapping[str, Any], entry: History) -> Token:
    try:
        expires = said.get("expires_at_ms")
        return Token(
            id=str(said["id"]),
            name=str(said["name"]),
            hash=str(said["hash"]),
            role=Role(said["role"]),
            domains=frozenset(map(str, said["domains"])),
            created_at_ms=entry.at_ms,
            created_by=entry.author,
            expires_at_ms=None if expires is None else int(expires),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a token: {error!r}") from None
