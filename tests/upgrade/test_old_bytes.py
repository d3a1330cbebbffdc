"""Bytes that the version before this one wrote: all of it is read, nothing of it changes its meaning.

``records.json`` was written by that version itself.  A record that gains a field is still read by a version that
does not know it; one that a reader must not misunderstand gets another name, or the next version number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from global_sync import codec
from global_sync.changes import (
    UNREADABLE,
    check_form,
    decode_history,
    decode_proposal,
    encode_history,
    encode_proposal,
)
from global_sync.rule_states import RulesFold, encode_parts
from regional_limiter.node_files import NodeFiles
from regional_limiter.rules import encode_blob, read_blob

OLD: dict[str, Any] = json.loads(Path(__file__).with_name("records.json").read_text())
FUTURE = {"from_the_future": {"a": [1]}}


def says(new: Any, old: Any) -> bool:
    """Whether ``new`` says all that ``old`` does, and of what both name the same."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and says(new[name], value) for name, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(says, new, old))
    return bool(new == old)


@pytest.mark.parametrize("name", OLD["log"])
def test_a_record_of_the_log(name: str) -> None:
    old = OLD["log"][name].encode()
    read = codec.decode_records(old)
    assert says(json.loads(codec.encode_records(read)), json.loads(old))
    document = json.loads(old)
    document["records"][0][1] |= FUTURE
    assert codec.decode_records(json.dumps(document | FUTURE).encode()) == read


def test_a_report() -> None:
    old = OLD["reports"]["report"].encode()
    read = codec.decode_report(old)
    assert says(json.loads(codec.encode_report(read)), json.loads(old))
    document = json.loads(old)
    document["report"] |= FUTURE
    assert codec.decode_report(json.dumps(document).encode()) == read


@pytest.mark.parametrize("kind", OLD["proposals"])
def test_a_proposal_and_its_outcome(kind: str) -> None:
    old = OLD["proposals"][kind].encode()
    proposal = decode_proposal(old)
    assert proposal.kind == kind != UNREADABLE
    check_form(proposal)
    assert says(json.loads(encode_proposal(proposal)), json.loads(old))
    assert decode_proposal(json.dumps(json.loads(old) | FUTURE).encode()) == proposal
    told = OLD["history"][kind].encode()
    entry = decode_history(told)
    assert says(json.loads(encode_history(entry)[1]), json.loads(told))
    assert decode_history(json.dumps(json.loads(told) | FUTURE).encode()) == entry


def test_accepted_rules() -> None:
    for more in ({}, FUTURE):
        fold = RulesFold()
        for value in OLD["rules"].values():
            assert fold.take(json.dumps(json.loads(value) | more).encode())
        state = fold.states()["shop"]
        assert (state.version, state.bases_version, state.rule_versions) == (4, 4, {"all": 4})
        written = {key.decode(): part(value) for key, value in encode_parts(state, 3)}
        assert all(says(written[key], part(value)) for key, value in OLD["rules"].items())


def part(value: str | bytes) -> dict[str, Any]:
    """A part of a state that has only one, with what it carries as text read as well."""
    document: dict[str, Any] = json.loads(value)
    return {**document, "blob": json.loads(document["blob"])}


def test_what_nodes_and_agents_keep_on_disk(tmp_path: Path) -> None:
    for name, content in OLD["blobs"].items():
        (tmp_path / name).write_text(content)
    files = NodeFiles(tmp_path)
    assert files.read_bases() == (15, {"shop": 5000})
    assert files.read_regions() == {"shop": 3}
    assert files.read_nodes() == 2
    blob = files.read_rules()
    assert blob is not None
    read = read_blob(blob, {})
    assert (read.version, set(read.sets), read.refused) == (4, {"shop"}, {})
    assert says(json.loads(encode_blob(read.version, read.in_force)), json.loads(blob))
