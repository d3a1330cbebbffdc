"""The words of a rule set, and its bounds.

An unknown field is a fault: one that is ignored would be a limit that its author believes in and nobody enforces.
"""

from __future__ import annotations

import re

from regional_limiter.model.rule import Algorithm

DOCUMENT_BYTES_MOST = 2**20
RULES_MOST = 10_000
SUBJECTS_MOST = 10_000
SUBJECT_SHAPES_MOST = 32
"""Different sets of attributes that subjects are found by: each costs every check one look-up."""
SUBJECT_ATTRIBUTES_MOST = 32
SUBJECT_BYTES_MOST = 4096
"""What may be said of one stored subject."""
SUBJECT_KEEP_MS_MOST = 86_400_000
OVERRIDES_MOST = 10_000
MULTIPLY_MOST = 1_000_000
NORMAL_FORMS_MOST = 8
VIEWS_MOST = 32
"""Different normal forms of attributes in one set: a check has each of them worked out."""
REGIONS_MOST = 64
WEIGHT_MOST = 1_000_000
TEXT_BYTES_MOST = 1024
MATCH_ATTRIBUTES_MOST = 16
MATCH_VALUES_MOST = 1000
MATCH_VALUES_OF_SET_MOST = 100_000
STARS_MOST = 16
KEY_ATTRIBUTES_MOST = 16
REPLACED_MOST = 100
CAPACITY_MOST = 900_000_000_000
"""Times 10,000 share units it still stays below 2^53."""
SPAN_MS_MOST = 366 * 86_400_000
LEASE_MS_MOST = 86_400_000
ENTRIES_MOST = {Algorithm.SLIDING_WINDOW_LOG: 10_000, Algorithm.CONCURRENCY: 10_000}
"""Of what a bucket keeps one entry for each: it is read and written with every check."""

HOME_VALUES_MOST = 1000
ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]{1,255}(?:/[A-Za-z0-9._~/-]{0,255})?", re.ASCII)
ADDRESS_EXPECTED = 'a URL such as "https://limits.eu-west.example:8443", without user, query and fragment'

SPLIT_MOST = 8
"""Sub-buckets of a key: a denial asks all of them."""

NAME = re.compile(r"[a-z0-9._-]{1,64}", re.ASCII)
NAME_EXPECTED = "1 to 64 of a-z, 0-9, dot, underscore and hyphen"
ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
ATTRIBUTE_EXPECTED = "a letter or underscore, then at most 63 letters, digits, underscores, dots and hyphens"

SET_FIELDS = (
    "domain",
    "regions",
    "defaults",
    "subjects",
    "stored_subjects",
    "overrides",
    "floor",
    "addresses",
    "rules",
)

OVERRIDE_FIELDS = (
    "rule",
    "key",
    "multiply",
    "capacity",
    "refill",
    "refill_per_second",
    "leak",
    "limit",
    "unlimited",
    "block",
    "until",
    "why",
)

RULE_FIELDS = (
    "id",
    "description",
    "match",
    "key",
    "algorithm",
    "capacity",
    "refill",
    "refill_per_second",
    "leak",
    "queue",
    "limit",
    "window",
    "lease",
    "scope",
    "distribution",
    "on_store_failure",
    "mode",
    "charge_denied",
    "hash_key",
    "headers",
    "stop",
    "replaces",
    "unlimited",
    "priority",
    "shed",
    "cost",
    "normalise",
    "canary",
    "split",
    "home",
)
