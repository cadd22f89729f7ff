"""Finds Google's snappy, which the kernel calls without the GIL.

No package of snappy for Python exports the functions of its library. The client library of
pulsar-client, which is installed anyway, contains and exports them, with C++ names.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from typing import NamedTuple

from records.codecs import XERIAL_BLOCK_BYTES

EXTENSION = "_pulsar"
"""The extension module that the library belongs to. It is not imported."""

_LENGTH = "_ZN6snappy21GetUncompressedLengthEPKcmPm"
_UNPACK = "_ZN6snappy13RawUncompressEPKcmPc"
_PACK = "_ZN6snappy8internal16CompressFragmentEPKcmPcPti"
"""What `RawCompress` calls with working memory that it allocates. If that fails, it throws a C++
exception, which would end the process.
"""
_MOST = "_ZN6snappy19MaxCompressedLengthEm"


class SnappyFunctions(NamedTuple):
    """Addresses of GetUncompressedLength, RawUncompress and CompressFragment; maximum bytes of a
    compressed block of XERIAL_BLOCK_BYTES.
    """

    length: int
    unpack: int
    pack: int
    block_bytes: int


def find_snappy_functions() -> SnappyFunctions | None:
    """Load the library, which takes 10 ms and 7 MiB the first time, and find its functions.

    Returns None if pulsar-client is not installed or does not export them.
    """
    try:
        spec = find_spec(EXTENSION)
        if spec is None or spec.origin is None:
            return None
        library = _load(spec.origin)
        length, unpack, pack = (
            ctypes.cast(library[name], ctypes.c_void_p).value for name in (_LENGTH, _UNPACK, _PACK)
        )
        most = library[_MOST]
    except (ImportError, OSError, AttributeError, TypeError, ValueError):
        return None
    most.argtypes, most.restype = (ctypes.c_size_t,), ctypes.c_size_t
    block_bytes = int(most(XERIAL_BLOCK_BYTES))
    if not (length and unpack and pack and block_bytes > XERIAL_BLOCK_BYTES):
        return None
    return SnappyFunctions(length, unpack, pack, block_bytes)


def _load(path: str) -> ctypes.CDLL:
    """As `CDLL(path)`, which keeps the GIL while it reads the file."""
    open_library = ctypes.CDLL(None).dlopen
    open_library.argtypes, open_library.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    handle = open_library(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
    if not handle:
        raise OSError(f"{path} cannot be loaded")
    return ctypes.CDLL(path, handle=handle)
