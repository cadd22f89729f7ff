"""liblz4 is found in the lz4 package; without its symbols the package itself is used."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import lz4
import pytest

from compat.message_sets import down_convert, read_records
from records import lz4_library
from tests.records.sample_records import LZ4, Sample, batch


def test_functions_belong_to_the_library_of_the_package():
    found = lz4_library.find_functions()
    assert found is not None
    library = ctypes.CDLL(lz4_library.block._block.__file__)
    assert library.LZ4_versionNumber() == lz4.library_version_number()
    unpack = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int
    )(found.unpack)
    into = ctypes.create_string_buffer(10)
    # Five literals, from the block format's specification.
    assert unpack(b"\x50hello", into, 6, 10) == 5
    assert into.value == b"hello"


@pytest.mark.parametrize(
    "file", [lz4_library.__file__, "/nowhere.so"], ids=["no library", "no file"]
)
def test_hidden_symbols_are_not_found(monkeypatch, file):
    monkeypatch.setattr(
        lz4_library, "block", SimpleNamespace(_block=SimpleNamespace(__file__=file))
    )
    assert lz4_library.find_functions() is None


def test_library_without_the_functions_is_not_used(monkeypatch):
    kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    monkeypatch.setattr(lz4_library, "block", SimpleNamespace(_block=kernel))
    assert lz4_library.find_functions() is None


def test_lz4_is_converted_by_the_package_without_the_functions():
    kernel = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    payload = batch([Sample(0, 1000, b"k", b"value")], codec=LZ4)
    kernel.use_lz4(0, 0, 0)
    try:
        assert kernel.down_all([payload], 1, 1000) == [None]
        assert [one.value for one in read_records(down_convert(payload, 1))] == [b"value"]
    finally:
        kernel.use_lz4(*lz4_library.find_functions())
