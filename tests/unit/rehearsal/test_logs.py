"""Files as they lie about: packed, rotated, cut off, without an end of line."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from services.rehearsal.attributes import Reading
from services.rehearsal.logs import LINE_MOST, UnreadableLog, read_lines, size_of
from services.rehearsal.reading import LogReader

TEXT = "one\n\ntwo \x00 \u00e9\nthree"


def line(second: int, who: str = "203.0.113.9") -> str:
    return f'{who} - - [10/Oct/2000:13:{second // 60:02d}:{second % 60:02d} -0700] "GET / HTTP/1.0" 200 -\n'


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, zstandard.compress, lambda text: gzip.compress(text[:9]) + gzip.compress(text[9:])],
)
def test_lines_of_plain_and_packed_files(tmp_path: Path, pack: object) -> None:
    file = tmp_path / "log"
    file.write_bytes(pack(TEXT.encode()))  # type: ignore[operator]
    taken: list[int] = []
    assert list(read_lines(str(file), taken.append)) == [(1, "one"), (3, "two \x00 \u00e9"), (4, "three")]
    assert sum(taken) == file.stat().st_size == size_of([str(file)])


def test_two_zstd_frames_are_one_log(tmp_path: Path) -> None:
    file = tmp_path / "log.zst"
    file.write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert [text for _, text in read_lines(str(file))] == ["one", "two"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_file_that_is_cut_off_says_so(tmp_path: Path, pack: object) -> None:
    file = tmp_path / "log"
    packed = pack("".join(map(line, range(60))).encode())  # type: ignore[operator]
    file.write_bytes(packed[:-20])
    with pytest.raises(UnreadableLog, match="cannot be read to its end"):
        list(read_lines(str(file)))


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "log.gz"
    file.write_bytes(gzip.compress(b"x" * 40_000_000 + b"\nend\n"))
    tracemalloc.start()
    try:
        lines = list(read_lines(str(file)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(number, len(text)) for number, text in lines] == [(1, LINE_MOST), (2, 3)]
    assert peak < 8_000_000


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableLog, match=r"directory|No such file"):
        size_of([str(tmp_path / name)])


def test_rotated_files_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    seconds = {"log": [40, 50], "log.1.gz": [20, 30, 45], "log.2.gz": [0, 10]}
    for name, times in seconds.items():
        text = "".join(map(line, times)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    reader = LogReader([str(tmp_path / name) for name in seconds], None, {})
    times_ms = [at for at, _ in reader.requests(reader.reading(["client_key"]))]
    first_ms = times_ms[0]
    assert [(at - first_ms) // 1000 for at in times_ms] == [0, 10, 20, 30, 40, 45, 50]
    assert (reader.format_name, reader.counts.read, reader.counts.late) == ("combined", 7, 0)


def test_unreadable_lines_are_counted_and_shown_not_fatal(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(
        line(0) + "garbage\n" * 7 + line(1).replace(" 200 ", " 429 ") + line(2).replace("GET / HTTP/1.0", "-")
    )
    reader = LogReader([str(file)], None, {})
    assert len(list(reader.requests(reader.reading([])))) == 2
    counts = reader.counts
    assert counts.read == 2
    assert counts.unreadable == {"not of this format": 7, "no request in it": 1}
    assert counts.examples[0] == (str(file), 2, "not of this format", "garbage")
    assert counts.limited_then == 1


def test_a_log_of_no_known_format_names_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("a,b,c\n")
    with pytest.raises(UnreadableLog, match="vhost, combined, envoy, alb, json"):
        LogReader([str(file)], None, {})


def test_a_value_that_is_too_long_for_a_check_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(line(0).replace("GET /", "GET /" + "a" * 2000) + line(1))
    reader = LogReader([str(file)], None, {})
    reading = reader.reading(["resource"])
    assert isinstance(reading, Reading)
    assert len(list(reader.requests(reading))) == 1
    assert reader.counts.refused == {"resource is longer than 1024 bytes": 1}
