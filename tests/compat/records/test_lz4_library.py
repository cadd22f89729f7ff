"""liblz4 is found within the lz4 package, and missed by nobody where it is hidden."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import lz4
import pytest

from compat.records import down_convert, lz4_library, read_records
from tests.compat.records.building import LZ4, Sample, batch


def test_its_functions_are_those_of_the_library_that_the_package_names():
    found = lz4_library.find_functions()
    assert found is not None
    library = ctypes.CDLL(lz4_library.block._block.__file__)
    assert library.LZ4_versionNumber() == lz4.library_version_number()
    unpack = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int
    )(found.unpack)
    into = ctypes.create_string_buffer(10)
    # Five literals, by the block format's specification.
    assert unpack(b"\x50hello", into, 6, 10) == 5
    assert into.value == b"hello"


@pytest.mark.parametrize(
    "file", [lz4_library.__file__, "/nowhere.so"], ids=["no library", "no file"]
)
def test_where_they_are_hidden_nothing_is_found(monkeypatch, file):
    monkeypatch.setattr(
        lz4_library, "block", SimpleNamespace(_block=SimpleNamespace(__file__=file))
    )
    assert lz4_library.find_functions() is None


def test_a_library_without_these_functions_is_none(monkeypatch):
    kernel = pytest.importorskip("compat.records._kernel", reason="the kernel is not compiled")
    monkeypatch.setattr(lz4_library, "block", SimpleNamespace(_block=kernel))
    assert lz4_library.find_functions() is None


def test_without_them_lz4_is_converted_by_the_package():
    kernel = pytest.importorskip("compat.records._kernel", reason="the kernel is not compiled")
    payload = batch([Sample(0, 1000, b"k", b"value")], codec=LZ4)
    kernel.use_lz4(0, 0, 0)
    try:
        assert kernel.down_all([payload], 1, 1000) == [None]
        assert [one.value for one in read_records(down_convert(payload, 1))] == [b"value"]
    finally:
        kernel.use_lz4(*lz4_library.find_functions())
