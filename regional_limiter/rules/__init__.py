"""Rules: from text to a set that is right as a whole, and from the set to a fast matcher.  Pure.

text -> :mod:`text` -> document -> :mod:`parse` -> RuleSet -> :mod:`compile` -> Matcher.
:mod:`blob` is how the sets of all domains travel together.
"""

from regional_limiter.rules.blob import Blob, KnownSet, Source, encode_blob, read_blob
from regional_limiter.rules.compile import compile_rules
from regional_limiter.rules.describe import describe, largest_cost, limit_in_words
from regional_limiter.rules.match import Match, Matcher
from regional_limiter.rules.parse import parse, parse_document, with_rule, without_rule

__all__ = [
    "Blob",
    "KnownSet",
    "Match",
    "Matcher",
    "Source",
    "compile_rules",
    "describe",
    "encode_blob",
    "largest_cost",
    "limit_in_words",
    "parse",
    "parse_document",
    "read_blob",
    "with_rule",
    "without_rule",
]
