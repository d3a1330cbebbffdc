"""Bucket keys: which identity meets which bucket, and in which hash slot.  Pure.

``rl:{<tag>}:<domain>/<rule>:<identity>``.  The tag is a keyed hash of the rule's first key part, so that the
rules of one client share a slot and nobody outside can choose a slot.  The secret is the same in every region
of a deployment: a key means the same everywhere, and is also the name under which shares of it are lent.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from urllib.parse import quote

from regional_limiter.model.rule import Rule

_ABSENT = "!"
_LONGEST_PLAIN_IDENTITY = 96
_NAME = "[a-z0-9._-]{1,64}"
_PART = "(?:!|[A-Za-z0-9_.~%-]*)"
_IDENTITY = rf"#[0-9a-f]{{32}}|(?!.{{{_LONGEST_PLAIN_IDENTITY + 1}}}){_PART}(?:,{_PART})*"
_BUCKET_KEY = re.compile(rf"rl:\{{[A-Za-z0-9_-]{{8}}\}}:{_NAME}/{_NAME}:(?:{_IDENTITY})", re.ASCII)


def _digest(secret: bytes, text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size, key=secret[:64]).hexdigest()


def _tag(secret: bytes, text: str) -> str:
    # Eight characters: a longer tag costs 16 bytes a key in Redis, and two clients with one tag only share a slot.
    return urlsafe_b64encode(blake2b(text.encode(), digest_size=6, key=secret[:64]).digest()).decode()


def _part(value: str | None) -> str:
    # quote() never yields "!", "," or "#": no value imitates an absent one, a joined list or a digest.
    return _ABSENT if value is None else quote(value, safe="")


def plain_identity(values: Sequence[str | None]) -> str:
    """The end of a bucket key by the values of its rule's key, unless the rule hashes it or it is long."""
    return ",".join(map(_part, values))


def bucket_key(rule: Rule, attributes: Mapping[str, str], secret: bytes) -> str:
    """The key of the rule's bucket for these attributes (the same string in every region).

    A split rule shares its tag with no other: each of its checks goes its own way.
    """
    values = [attributes.get(name) for name in rule.key]
    first = f"{rule.key[0]}={_part(values[0])}" if rule.key else f"rule={rule.id}"
    if rule.split > 1:
        first = f"{rule.id}/{first}"
    identity = plain_identity(values)
    if rule.hash_key or len(identity) > _LONGEST_PLAIN_IDENTITY:
        identity = "#" + _digest(secret, identity, 16)
    return f"rl:{{{_tag(secret, f'{rule.domain}/{first}')}}}:{rule.domain}/{rule.id}:{identity}"


def tag_of(key: str) -> str:
    """The hash tag of a bucket key: buckets with the same tag live in the same slot."""
    return key[4 : key.index("}")]


def is_bucket_key(text: str) -> bool:
    """Whether :func:`bucket_key` could have made it: not that of a part, nor of what is kept beside one."""
    return _BUCKET_KEY.fullmatch(text) is not None


def identity_of(key: str) -> str:
    """The end of a bucket key, which names the identity within its rule."""
    return key[key.index("}") + 2 :].partition(":")[2]


def rule_of(key: str) -> tuple[str, str]:
    """(domain, rule id) of a bucket key."""
    domain, _, rest = key[key.index("}") + 2 :].partition("/")
    return domain, rest.partition(":")[0]
