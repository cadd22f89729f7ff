"""The picture of the report page in the README."""

from __future__ import annotations

import struct

import pytest

from tests.reports.page import picture

SIZE = tuple(round(number * picture.SCALE) for number in (picture.WIDTH, picture.HEIGHT))
MAX_BYTES = 150_000


def size_of(file):
    """The width and height of a PNG."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_readme_shows_the_picture():
    readme = picture.PICTURE.parents[1] / "README.md"
    assert "(docs/report.png)" in readme.read_text("utf-8")
    assert size_of(picture.PICTURE) == SIZE
    assert picture.PICTURE.stat().st_size <= MAX_BYTES


@pytest.mark.peer
def test_picture_has_its_size(chromium, tmp_path):
    picture.take(chromium, tmp_path, tmp_path / "report.png")
    assert size_of(tmp_path / "report.png") == SIZE
