"""Selection of the inner loops' implementation and of the lz4 functions.

If the kernel is not used, a reason is given. If the lz4 package hides the symbols of its library,
the package itself is used.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import lz4
import pytest

from compat.message_sets import down_convert, read_records
from records import kernel
from tests.records.sample_records import LZ4, Sample, batch

TELLS = "from records import KERNEL, KERNEL_REASON; print(KERNEL, KERNEL_REASON)"


def told(before="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{TELLS}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout.strip()


def test_compiled_kernel_is_used_if_available():
    pytest.importorskip("records._kernel", reason="it is not compiled (pip install -e .)")
    assert told() == "cython"


def test_pure_python_can_be_selected():
    assert told(KOPGATE_PURE_PYTHON="1") == "python KOPGATE_PURE_PYTHON is set"


def test_missing_kernel_falls_back_to_pure_python_with_reason():
    assert told("import sys; sys.modules['records._kernel'] = None").startswith(
        "python the compiled kernel is missing"
    )


def test_kernel_of_other_version_is_not_used():
    left_over = (
        "import sys, types; sys.modules['records._kernel'] = types.ModuleType('records._kernel')"
    )
    assert told(left_over).startswith(
        "python the compiled kernel is from another version: reinstall"
    )


def test_lz4_functions_belong_to_the_library_of_the_package():
    found = kernel.find_lz4_functions()
    assert found is not None
    library = ctypes.CDLL(kernel.block._block.__file__)
    assert library.LZ4_versionNumber() == lz4.library_version_number()
    unpack = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int
    )(found.unpack)
    into = ctypes.create_string_buffer(10)
    # Five literals, from the block format's specification.
    assert unpack(b"\x50hello", into, 6, 10) == 5
    assert into.value == b"hello"


@pytest.mark.parametrize("file", [kernel.__file__, "/nowhere.so"], ids=["no library", "no file"])
def test_hidden_lz4_symbols_are_not_found(monkeypatch, file):
    monkeypatch.setattr(kernel, "block", SimpleNamespace(_block=SimpleNamespace(__file__=file)))
    assert kernel.find_lz4_functions() is None


def test_lz4_library_without_the_functions_is_not_used(monkeypatch):
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    monkeypatch.setattr(kernel, "block", SimpleNamespace(_block=compiled))
    assert kernel.find_lz4_functions() is None


def test_lz4_is_converted_by_the_package_without_the_functions():
    compiled = pytest.importorskip("records._kernel", reason="the kernel is not compiled")
    payload = batch([Sample(0, 1000, b"k", b"value")], codec=LZ4)
    compiled.use_lz4(0, 0, 0)
    try:
        assert compiled.down_all([payload], 1, 1000) == [None]
        assert [one.value for one in read_records(down_convert(payload, 1))] == [b"value"]
    finally:
        compiled.use_lz4(*kernel.find_lz4_functions())
