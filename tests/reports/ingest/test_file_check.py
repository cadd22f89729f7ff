"""Examination of a log file before its rows are read."""

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


def test_compressed_and_plain_file_have_equal_content(tmp_path):
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


def test_file_with_several_gzip_members_is_complete(tmp_path):
    assert examine(file(tmp_path, gzip.compress(row(1)) + gzip.compress(row(2)))).span == RowSpan(
        "1-a", 1, 2
    )


@given(st.integers(1, len(gzip.compress(CONTENT, mtime=0)) - 1))
def test_truncated_gzip_file_is_damaged(tmp_path_factory, length):
    seen = examine(file(tmp_path_factory.mktemp("cut"), gzip.compress(CONTENT, mtime=0)[:length]))
    assert seen.damage == "truncated gzip file"


@given(st.integers(10, len(gzip.compress(CONTENT, mtime=0)) - 1), st.integers(1, 255))
def test_gzip_file_with_changed_byte_is_damaged_or_unchanged(tmp_path_factory, place, flip):
    content = bytearray(gzip.compress(CONTENT, mtime=0))
    content[place] ^= flip
    seen = examine(file(tmp_path_factory.mktemp("flip"), bytes(content)))
    assert seen.damage or seen.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_empty_file_is_complete_but_empty_gzip_file_is_truncated(tmp_path):
    assert examine(file(tmp_path, b"", "f.jsonl")).damage is None
    assert examine(file(tmp_path, gzip.compress(b""))).damage is None
    assert examine(file(tmp_path, b"")).damage == "truncated gzip file"


def test_plain_content_in_gzip_file_is_damaged(tmp_path):
    assert examine(file(tmp_path, CONTENT)).damage.startswith("corrupt gzip file")


def test_missing_file_is_reported(tmp_path):
    assert examine(tmp_path / "f.jsonl").damage == "cannot be read: No such file or directory"


def test_incomplete_last_line_counts_and_previous_line_is_used(tmp_path):
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
def test_file_not_written_by_gateway_has_no_span(tmp_path, content):
    assert examine(file(tmp_path, content, "f.jsonl")).span is None


@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(1, 9))
def test_chunk_boundaries_do_not_matter(tmp_path_factory, parts, piece):
    content = row(1) + b"\n".join(parts) + b"\n" + row(7)
    path = file(tmp_path_factory.mktemp("pieces"), content, "f.jsonl")
    whole = examine(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_check, "CHUNK_BYTES", piece)
        assert examine(path) == whole
    assert (whole.lines, whole.span) == (content.count(b"\n"), RowSpan("1-a", 1, 7))


def test_gzip_file_is_decompressed_in_chunks(tmp_path, monkeypatch):
    path = file(tmp_path, zlib.compress(bytes(5_000_000), wbits=31))
    seen = []
    monkeypatch.setattr(file_check._FileScanner, "add", lambda self, piece: seen.append(len(piece)))
    assert examine(path).damage is None
    assert (sum(seen), max(seen)) == (5_000_000, file_check.CHUNK_BYTES)


@pytest.mark.long
def test_extreme_compression_ratio_stops_reading(tmp_path):
    bomb = zlib.compress(b"\n" * (256 << 20), wbits=31)
    assert len(bomb) < 300_000
    seen = examine(file(tmp_path, bomb))
    assert seen.damage == f"unpacks to more than {64 << 20} bytes"
    assert seen.size <= (64 << 20) + file_check.CHUNK_BYTES


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz"])
def test_oversized_file_stops_reading(tmp_path, monkeypatch, name):
    monkeypatch.setattr(file_check, "MAX_UNPACKED_BYTES", 2 << 20)
    content = row(1) * 200_000
    seen = examine(
        file(tmp_path, gzip.compress(content) if name.endswith(".gz") else content, name)
    )
    assert seen.damage == f"unpacks to more than {2 << 20} bytes"
    assert seen.size <= (2 << 20) + file_check.CHUNK_BYTES < len(content)


def test_endless_line_stops_reading(tmp_path):
    seen = examine(file(tmp_path, row(1) + bytes(50 << 20) + b"\n" + row(2), "f.jsonl"))
    assert seen.damage == f"contains a line of more than {8 << 20} bytes"
    assert seen.size < 10 << 20


def test_many_short_lines_are_not_one_long_line(tmp_path, monkeypatch):
    monkeypatch.setattr(file_check, "CHUNK_BYTES", 9)
    monkeypatch.setattr(file_check, "MAX_LINE_BYTES", 41)
    assert examine(file(tmp_path, (b"x" * 40 + b"\n") * 100, "f.jsonl")).damage is None


def test_file_with_very_many_gzip_members_is_read_quickly(tmp_path):
    parts = gzip.compress(b"", mtime=0) * 50_000
    assert examine(file(tmp_path, parts + gzip.compress(CONTENT))).lines == 3


def test_read_error_is_reported(tmp_path):
    (tmp_path / "f.jsonl").symlink_to("/proc/self/mem")
    assert examine(tmp_path / "f.jsonl").damage == "cannot be read: Input/output error"
