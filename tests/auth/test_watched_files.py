from __future__ import annotations

import os

import pytest
from twisted.internet.task import Clock

from auth.watched_files import WatchedFiles


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "file"
    file.write_text("one")
    return file


def replace(path):
    new = path.with_name("new")
    new.write_text("two")
    os.replace(new, path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("longer"),
        replace,
        lambda path: path.unlink(),
        lambda path: os.utime(path, ns=(1, 1)),
    ],
    ids=["written", "replaced", "removed", "touched"],
)
def test_change_is_reported_once(path, change):
    watched = WatchedFiles([path])
    assert not watched.changed()
    change(path)
    assert watched.changed()
    assert not watched.changed()


def test_missing_file_that_appears_is_a_change(tmp_path):
    watched = WatchedFiles([tmp_path / "file"])
    (tmp_path / "file").write_text("")
    assert watched.changed()


def test_files_are_checked_once_per_interval(path):
    clock = Clock()
    watched = WatchedFiles([path], clock.seconds, 1.0)
    path.write_text("longer")
    assert not watched.changed()
    clock.advance(1.0)
    assert watched.changed()


def test_is_current_records_nothing(path):
    watched = WatchedFiles([path])
    path.write_text("longer")
    assert not watched.is_current()
    assert watched.changed()
    assert watched.is_current()
