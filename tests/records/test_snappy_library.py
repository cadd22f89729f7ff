"""The functions of snappy are found in pulsar-client's library, which is loaded when needed.

Without them codecs.py converts snappy.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from compat.message_sets import down_convert, read_records
from records import kernel, snappy_library
from records.snappy_library import find_snappy_functions
from tests.records.sample_records import LZ4, SNAPPY, Sample, batch


def test_functions_are_those_of_the_library():
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
def test_library_without_the_functions_is_not_used(monkeypatch, name):
    monkeypatch.setattr(snappy_library, "EXTENSION", name)
    assert find_snappy_functions() is None


def converted(codec: int) -> list[bytes | None]:
    payload = batch([Sample(0, 1000, b"k", b"value")], codec=codec)
    return [one.value for one in read_records(down_convert(payload, 1))]


def test_snappy_is_converted_without_the_library(monkeypatch):
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    found = find_snappy_functions()
    monkeypatch.setattr(snappy_library, "EXTENSION", "no_such_module")
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
