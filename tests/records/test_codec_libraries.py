"""Functions of the codecs' libraries: they are found, and without them codecs.py converts.

Those of snappy are in pulsar-client's library, which is loaded when needed.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import lz4.block
import pytest
from isal import igzip_lib

from compat.message_sets import down_convert, read_records
from records import codec_libraries, kernel
from records.codec_libraries import find_gzip_functions, find_lz4_functions, find_snappy_functions
from tests.records.sample_records import GZIP, LZ4, SNAPPY, Sample, batch


def test_snappy_functions_are_those_of_the_library():
    found = find_snappy_functions()
    assert found is not None
    # MaxCompressedLength in snappy.cc: 32 + n + n / 6.
    assert found.block_bytes == 32 + 32_768 + 5461
    length = ctypes.CFUNCTYPE(
        ctypes.c_bool, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
    )(found.length)
    unpack = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)(
        found.unpack
    )
    # From the format's description: the length, and a literal of five bytes.
    hello, size, into = b"\x05\x10hello", ctypes.c_size_t(), ctypes.create_string_buffer(10)
    assert length(hello, len(hello), ctypes.byref(size))
    assert size.value == 5
    assert unpack(hello, len(hello), into)
    assert into.value == b"hello"


@pytest.mark.parametrize("name", ["no_such_module", "json", "records._kernel", "sys", "no.such"])
def test_library_without_snappys_functions_is_not_used(monkeypatch, name):
    monkeypatch.setattr(codec_libraries, "SNAPPY_EXTENSION", name)
    assert find_snappy_functions() is None


def converted(codec: int) -> list[bytes | None]:
    payload = batch([Sample(0, 1000, b"k", b"value")], codec=codec)
    return [one.value for one in read_records(down_convert(payload, 1))]


def test_snappy_is_converted_without_the_library(monkeypatch):
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    found = find_snappy_functions()
    monkeypatch.setattr(codec_libraries, "SNAPPY_EXTENSION", "no_such_module")
    monkeypatch.setattr(kernel, "PACKED_CODECS", 1 << LZ4)
    monkeypatch.setattr(kernel, "_has_searched_snappy", False)
    compiled.use_snappy(0, 0, 0, 0)
    try:
        assert converted(SNAPPY) == [b"value"]
        assert kernel.PACKED_CODECS == 1 << LZ4
    finally:
        compiled.use_snappy(*found)


CONVERTS = """
import sys
from compat.message_sets import down_convert
from tests.records.sample_records import Sample, batch

def is_loaded():
    with open("/proc/self/maps") as maps:
        return "_pulsar" in maps.read()

for codec in (3, 2):
    down_convert(batch([Sample(0, 1000, b"k", b"value")], codec=codec), 1)
    print(is_loaded(), "_pulsar" in sys.modules)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.skipif(kernel.KERNEL != "cython", reason="the kernel is not compiled")
def test_library_is_loaded_with_the_first_batch_in_snappy_and_its_module_not_imported():
    done = subprocess.run(
        [sys.executable, "-c", CONVERTS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "False"]


def test_lz4_functions_belong_to_the_library_of_the_package():
    found = find_lz4_functions()
    assert found is not None
    library = ctypes.CDLL(codec_libraries.block._block.__file__)
    assert library.LZ4_versionNumber() == lz4.library_version_number()
    unpack = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int
    )(found.unpack)
    into = ctypes.create_string_buffer(10)
    # Five literals, from the block format's specification.
    assert unpack(b"\x50hello", into, 6, 10) == 5
    assert into.value == b"hello"


@pytest.mark.parametrize(
    "file", [codec_libraries.__file__, "/nowhere.so"], ids=["no library", "no file"]
)
def test_hidden_lz4_symbols_are_not_found(monkeypatch, file):
    monkeypatch.setattr(
        codec_libraries, "block", SimpleNamespace(_block=SimpleNamespace(__file__=file))
    )
    assert find_lz4_functions() is None


def test_lz4_library_without_the_functions_is_not_used(monkeypatch):
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    monkeypatch.setattr(codec_libraries, "block", SimpleNamespace(_block=compiled))
    assert find_lz4_functions() is None


def test_lz4_is_converted_by_the_package_without_the_functions():
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    payload = batch([Sample(0, 1000, b"k", b"value")], codec=LZ4)
    compiled.use_lz4(0, 0, 0)
    try:
        assert compiled.down_all([payload], 1, 1000) == [None]
        assert [one.value for one in read_records(down_convert(payload, 1))] == [b"value"]
    finally:
        compiled.use_lz4(*find_lz4_functions())


def test_gzip_functions_are_those_of_the_library():
    found = find_gzip_functions()
    assert found is not None
    assert found.unpack_bytes > 64 * 1024
    assert found.pack_bytes > 64 * 1024
    assert len({found.unpack_init, found.unpack, found.pack_init, found.pack} - {0}) == 4


def test_another_major_version_of_isal_is_not_used(monkeypatch):
    monkeypatch.setattr(codec_libraries.isal, "ISAL_MAJOR_VERSION", 3)
    assert find_gzip_functions() is None


@pytest.mark.parametrize("file", [lz4.block._block.__file__, codec_libraries.__file__, "/no.so"])
def test_hidden_gzip_symbols_are_not_found(monkeypatch, file):
    monkeypatch.setattr(
        codec_libraries,
        "igzip_lib",
        SimpleNamespace(__file__=file, IgzipDecompressor=igzip_lib.IgzipDecompressor),
    )
    assert find_gzip_functions() is None


def test_objects_that_do_not_contain_isals_structures_are_not_used(monkeypatch):
    monkeypatch.setattr(
        codec_libraries,
        "igzip_lib",
        SimpleNamespace(__file__=igzip_lib.__file__, IgzipDecompressor=object),
    )
    assert find_gzip_functions() is None


def test_gzip_is_converted_by_the_package_without_the_functions():
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    compiled.use_gzip(0, 0, 0, 0, 0, 0)
    try:
        assert converted(GZIP) == [b"value"]
    finally:
        compiled.use_gzip(*find_gzip_functions())
