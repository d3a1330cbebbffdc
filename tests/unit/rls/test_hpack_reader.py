"""Our reader of header blocks against the package ``hpack``, block after block on one connection."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from services.rls.http2.hpack_reader import Header, HpackReader, Mangled, TooLarge
from services.rls.http2.huffman import NotHuffman, decoded

NAMES = st.sampled_from([b":path", b"content-type", b"grpc-timeout", b"te", b"x-a", b"x-request-id", b"cookie"])
VALUES = st.binary(max_size=12) | st.sampled_from([b"trailers", b"application/grpc", b"x" * 300])
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
BLOCKS = st.lists(st.tuples(HEADERS, st.booleans(), st.none() | st.integers(0, 4096)), min_size=1, max_size=12)


def reader() -> HpackReader[list[Header]]:
    return HpackReader(list)


@given(BLOCKS)
def test_blocks_mean_what_their_writer_meant(blocks: list[tuple[list[Header], bool, int | None]]) -> None:
    encoder, ours = Encoder(), reader()
    for headers, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        # Twice: the second block may be known by its bytes.
        for _ in range(2):
            assert ours(encoder.encode(headers, huffman=huffman)) == headers


@given(st.lists(st.binary(max_size=24), max_size=6))
def test_any_bytes_are_read_as_the_package_reads_them_or_refused(blocks: list[bytes]) -> None:
    theirs, ours = Decoder(max_header_list_size=16 * 1024), reader()
    theirs.max_allowed_table_size = 4096
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except HPACKError:
            expected = None
        try:
            read = ours(block)
        except (Mangled, TooLarge):
            return  # nothing after it can be read
        if expected is None:
            return
        assert read == expected


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xff\x80",
        b"\xff\xff\xff\xff\xff\x7f",
        b"\xbe",
        b"\x00\x05ab",
        b"\x00",
        b"\x3f\xe2\x1f",
        b"\x82\x20",
        b"\x00\x82\xff\xff\x01a",
    ],
)
def test_what_is_mangled_loses_the_connection(block: bytes) -> None:
    with pytest.raises(Mangled):
        reader()(block)


def test_a_list_that_is_too_large_is_read_to_its_end_so_that_the_next_can_be_read() -> None:
    encoder, ours = Encoder(), reader()
    large = encoder.encode([(b"x-%d" % i, b"y" * 900) for i in range(40)], huffman=False)
    with pytest.raises(TooLarge):
        ours(large)
    assert ours(encoder.encode([(b"x-39", b"y" * 900), (b"a", b"b")])) == [(b"x-39", b"y" * 900), (b"a", b"b")]


@given(st.binary(max_size=80))
def test_a_text_in_huffmans_code_is_read_back(text: bytes) -> None:
    assert decoded(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)) == text


@given(st.binary(max_size=24))
def test_any_bytes_are_a_text_in_huffmans_code_or_refused_as_the_package_says(coded: bytes) -> None:
    try:
        expected = bytes(decode_huffman(coded))
    except HPACKError:
        with pytest.raises(NotHuffman):
            decoded(coded)
    else:
        assert decoded(coded) == expected
