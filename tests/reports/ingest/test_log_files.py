"""Finding the files of a log, and which of them are finished."""

from __future__ import annotations

import errno
import os
from datetime import date

import pytest

from reports.ingest import log_files
from reports.ingest.log_files import (
    LogFile,
    UnreadableError,
    check_names,
    copy_complete_lines,
    find,
)


def put(logs, *names):
    for name in names:
        (logs / name).parent.mkdir(parents=True, exist_ok=True)
        (logs / name).write_bytes(b"")


def found(logs):
    return {file.name: file.is_finished for file in find(logs)}


def test_compressed_file_is_finished_and_last_file_of_node_is_not(tmp_path):
    put(tmp_path, "date=2026-11-20/hour=09/1-a0-0.jsonl.gz", "date=2026-11-20/hour=10/1-a0-1.jsonl")
    assert found(tmp_path) == {
        "date=2026-11-20/hour=09/1-a0-0.jsonl": True,
        "date=2026-11-20/hour=10/1-a0-1.jsonl": False,
    }


def test_file_is_finished_once_its_own_process_starts_another(
    tmp_path,
):
    """After a clock was set back, a newer process can have an earlier start time."""
    put(
        tmp_path,
        "1-zz-7.jsonl",
        "1-zz-8.jsonl",
        "1-100-0.jsonl",
        "1-200-0.jsonl.gz",
        "2-zz-9.jsonl",
    )
    assert [name for name, is_finished in found(tmp_path).items() if is_finished] == [
        "1-200-0.jsonl",
        "1-zz-7.jsonl",
    ]


def test_file_numbers_compare_as_numbers(tmp_path):
    put(tmp_path, "1-a-9.jsonl", "1-a-10.jsonl")
    assert found(tmp_path) == {"1-a-9.jsonl": True, "1-a-10.jsonl": False}


def test_compressed_copy_wins_over_plain_file(tmp_path):
    put(tmp_path, "1-a-0.jsonl", "1-a-0.jsonl.gz")
    (file,) = find(tmp_path)
    assert (file.name, file.path.name, file.is_finished) == ("1-a-0.jsonl", "1-a-0.jsonl.gz", True)


def test_files_hidden_from_spark_are_ignored(tmp_path):
    put(
        tmp_path,
        "_1-a-0.jsonl",
        ".1-a-0.jsonl.gz",
        "_old/1-a-0.jsonl",
        "1-a-0.jsonl.gz.part",
        "notes.txt",
    )
    assert found(tmp_path) == {}


def test_broken_symlink_and_pipe_are_ignored(tmp_path):
    (tmp_path / "1-a-0.jsonl").symlink_to("nowhere")
    (tmp_path / "1-a-1.jsonl.gz").mkdir()
    (tmp_path / "1-a-2.jsonl").symlink_to("1-a-1.jsonl.gz")
    os.mkfifo(tmp_path / "1-a-3.jsonl.gz")
    (tmp_path / "1-a-4.jsonl").symlink_to("1-a-3.jsonl.gz")
    assert found(tmp_path) == {}


def test_folder_deleted_during_search_hides_no_others(tmp_path, monkeypatch):
    put(tmp_path, "date=2026-11-20/hour=10/1-a-1.jsonl.gz")
    old = tmp_path / "date=2026-11-20" / "hour=09"
    old.mkdir()
    real = os.scandir

    def after_another(path):
        if str(path) == str(old):
            old.rmdir()
        return real(path)

    monkeypatch.setattr(os, "scandir", after_another)
    assert found(tmp_path) == {"date=2026-11-20/hour=10/1-a-1.jsonl": True}
    assert not old.exists()


def test_unlistable_folder_is_an_error(tmp_path, monkeypatch):
    put(tmp_path, "a/1-a-0.jsonl", "b/1-a-1.jsonl")
    real = os.scandir

    def scandir(path):
        if str(path) == str(tmp_path / "a"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        find(tmp_path)


def test_missing_log_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        find(tmp_path / "nowhere")


def test_file_with_other_name_is_finished_only_when_compressed(tmp_path):
    put(tmp_path, "copy.jsonl", "copy of 1-a-0.jsonl.gz")
    assert found(tmp_path) == {"copy of 1-a-0.jsonl": True, "copy.jsonl": False}


@pytest.mark.parametrize(
    ("content", "kept"), [(b"a\nb\nha", b"a\nb\n"), (b"a\n", b"a\n"), (b"half", b""), (b"", b"")]
)
def test_copy_contains_complete_lines_at_same_relative_path(tmp_path, content, kept):
    put(tmp_path, "logs/date=2026-11-20/hour=09/1-a-0.jsonl")
    (file,) = find(tmp_path / "logs")
    file.path.write_bytes(content)
    copy = copy_complete_lines(file, tmp_path / "copies")
    assert (copy.path, copy.name, copy.path.read_bytes()) == (
        tmp_path / "copies" / file.name,
        file.name,
        kept,
    )
    assert file.path.read_bytes() == content


def test_missing_file_cannot_be_copied(tmp_path):
    with pytest.raises(FileNotFoundError):
        copy_complete_lines(
            LogFile(tmp_path / "1-a-0.jsonl", "1-a-0.jsonl", False), tmp_path / "copies"
        )


def test_unreadable_file_cannot_be_copied_and_reason_is_given(tmp_path):
    (tmp_path / "1-a-0.jsonl").symlink_to("/proc/self/mem")
    with pytest.raises(UnreadableError, match="cannot be read: Input/output error"):
        copy_complete_lines(
            LogFile(tmp_path / "1-a-0.jsonl", "1-a-0.jsonl", False), tmp_path / "copies"
        )


def test_copy_stops_at_size_limit(tmp_path, monkeypatch):
    put(tmp_path, "logs/1-a-0.jsonl")
    os.truncate(tmp_path / "logs" / "1-a-0.jsonl", 64 << 20)
    monkeypatch.setattr(log_files, "MAX_COPIED_BYTES", 8 << 20)
    (file,) = find(tmp_path / "logs")
    with pytest.raises(UnreadableError, match="larger than 8388608 bytes"):
        copy_complete_lines(file, tmp_path / "copies")
    assert list((tmp_path / "copies").iterdir()) == []


def test_file_names_unreadable_for_spark_and_future_days_are_skipped(
    tmp_path,
):
    names = [
        "date=2026-11-22/hour=09/1-a-0.jsonl.gz",
        "date=2026-11-23/1-a-1.jsonl",
        "date=9999-99-99/1-a-2.jsonl",
        "a:b.jsonl",
        "date=x/1-b-0.jsonl",
    ]
    put(tmp_path, *names)
    with open(os.fsencode(tmp_path) + b"/1-a-\xff.jsonl.gz", "wb"):
        pass
    good, strange = check_names(find(tmp_path), date(2026, 11, 22))
    assert [file.name for file in good] == [
        "date=2026-11-22/hour=09/1-a-0.jsonl",
        "date=x/1-b-0.jsonl",
    ]
    assert [(name, reason.split()[-1]) for name, reason in strange] == [
        ("1-a-\\xff.jsonl", "it"),
        ("a:b.jsonl", "it"),
        ("date=2026-11-23/1-a-1.jsonl", "wrong"),
        ("date=9999-99-99/1-a-2.jsonl", "wrong"),
    ]
