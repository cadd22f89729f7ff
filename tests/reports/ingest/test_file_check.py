"""What a log file is before its rows are read."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.ingest import file_check
from reports.ingest.file_check import examine
from reports.ingest.row_spans import RowSpan


def row(sequence, process="1-a"):
    return json.dumps({"connection": f"{process}-7", "sequence": sequence}).encode() + b"\n"


CONTENT = row(3) + row(4) + row(9)


def file(tmp_path, content, name="f.jsonl.gz"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_compressed_or_not_the_content_is_the_same(tmp_path):
    plain, packed = (
        examine(file(tmp_path, *pair))
        for pair in ((CONTENT, "f.jsonl"), (gzip.compress(CONTENT), "f.jsonl.gz"))
    )
    assert plain == packed
    assert (plain.sha256, plain.size, plain.lines) == (
        hashlib.sha256(CONTENT).hexdigest(),
        len(CONTENT),
        3,
    )
    assert (plain.span, plain.damage) == (RowSpan("1-a", 3, 9), None)


def test_a_file_of_several_compressed_parts_is_whole(tmp_path):
    assert examine(file(tmp_path, gzip.compress(row(1)) + gzip.compress(row(2)))).span == RowSpan(
        "1-a", 1, 2
    )


@given(st.integers(1, len(gzip.compress(CONTENT, mtime=0)) - 1))
def test_a_compressed_file_that_is_cut_off_anywhere_is_damaged(tmp_path_factory, length):
    seen = examine(file(tmp_path_factory.mktemp("cut"), gzip.compress(CONTENT, mtime=0)[:length]))
    assert seen.damage == "the compressed file is cut off"


@given(st.integers(10, len(gzip.compress(CONTENT, mtime=0)) - 1), st.integers(1, 255))
def test_a_compressed_file_with_a_changed_byte_is_damaged_or_reads_the_same(
    tmp_path_factory, place, flip
):
    content = bytearray(gzip.compress(CONTENT, mtime=0))
    content[place] ^= flip
    seen = examine(file(tmp_path_factory.mktemp("flip"), bytes(content)))
    assert seen.damage or seen.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_an_empty_file_is_whole_and_an_empty_compressed_one_is_cut_off(tmp_path):
    assert examine(file(tmp_path, b"", "f.jsonl")).damage is None
    assert examine(file(tmp_path, gzip.compress(b""))).damage is None
    assert examine(file(tmp_path, b"")).damage == "the compressed file is cut off"


def test_what_is_not_compressed_is_damaged_where_it_says_it_is(tmp_path):
    assert examine(file(tmp_path, CONTENT)).damage.startswith("the compressed file is damaged")


def test_a_file_that_is_gone_is_said_to_be(tmp_path):
    assert examine(tmp_path / "f.jsonl").damage == "it cannot be read: No such file or directory"


def test_a_last_line_without_its_end_is_a_line_and_does_not_hide_the_one_before(tmp_path):
    seen = examine(file(tmp_path, CONTENT + b'{"conn', "f.jsonl"))
    assert (seen.lines, seen.span) == (4, RowSpan("1-a", 3, 9))


@pytest.mark.parametrize(
    "content",
    [
        b"x\n" + row(1),
        row(1) + row(2, "1-b"),
        row(2) + row(1),
        b'{"connection": 1, "sequence": 2}\n',
        b"[" * 40_000,
    ],
)
def test_a_file_that_is_not_as_gateways_write_it_has_no_span(tmp_path, content):
    assert examine(file(tmp_path, content, "f.jsonl")).span is None


@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(1, 9))
def test_where_it_is_cut_into_pieces_does_not_matter(tmp_path_factory, parts, piece):
    content = row(1) + b"\n".join(parts) + b"\n" + row(7)
    path = file(tmp_path_factory.mktemp("pieces"), content, "f.jsonl")
    whole = examine(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_check, "CHUNK_BYTES", piece)
        assert examine(path) == whole
    assert (whole.lines, whole.span) == (content.count(b"\n"), RowSpan("1-a", 1, 7))


def test_a_compressed_file_is_unpacked_a_piece_at_a_time(tmp_path, monkeypatch):
    path = file(tmp_path, zlib.compress(bytes(5_000_000), wbits=31))
    seen = []
    monkeypatch.setattr(file_check._FileScanner, "add", lambda self, piece: seen.append(len(piece)))
    assert examine(path).damage is None
    assert (sum(seen), max(seen)) == (5_000_000, file_check.CHUNK_BYTES)


def test_a_file_that_unpacks_to_very_much_is_not_unpacked_to_its_end(tmp_path):
    bomb = zlib.compress(b"\n" * (256 << 20), wbits=31)
    assert len(bomb) < 300_000
    seen = examine(file(tmp_path, bomb))
    assert seen.damage == f"it unpacks to more than {64 << 20} bytes"
    assert seen.size <= (64 << 20) + file_check.CHUNK_BYTES


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz"])
def test_a_file_of_more_than_gateways_ever_write_is_not_read_to_its_end(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(file_check, "MAX_UNPACKED_BYTES", 2 << 20)
    content = row(1) * 200_000
    seen = examine(
        file(tmp_path, gzip.compress(content) if name.endswith(".gz") else content, name)
    )
    assert seen.damage == f"it unpacks to more than {2 << 20} bytes"
    assert seen.size <= (2 << 20) + file_check.CHUNK_BYTES < len(content)


def test_a_line_that_has_no_end_is_not_read_to_its_end(tmp_path):
    seen = examine(file(tmp_path, row(1) + bytes(50 << 20) + b"\n" + row(2), "f.jsonl"))
    assert seen.damage == f"it has a line of more than {8 << 20} bytes"
    assert seen.size < 10 << 20


def test_very_many_lines_that_are_not_too_long_are_none_that_is(tmp_path, monkeypatch):
    monkeypatch.setattr(file_check, "CHUNK_BYTES", 9)
    monkeypatch.setattr(file_check, "MAX_LINE_BYTES", 41)
    assert examine(file(tmp_path, (b"x" * 40 + b"\n") * 100, "f.jsonl")).damage is None


def test_a_file_of_very_many_compressed_parts_is_read_in_a_moment(tmp_path):
    parts = gzip.compress(b"", mtime=0) * 50_000
    assert examine(file(tmp_path, parts + gzip.compress(CONTENT))).lines == 3


def test_what_cannot_be_read_is_said_to(tmp_path):
    (tmp_path / "f.jsonl").symlink_to("/proc/self/mem")
    assert examine(tmp_path / "f.jsonl").damage == "it cannot be read: Input/output error"
