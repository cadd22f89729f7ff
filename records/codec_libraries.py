"""Finds functions of the codecs' libraries, which the kernel calls without the GIL.

All of them are in packages that are installed anyway. A package that does not export them is used
through its Python interface, by `codecs.py`.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from typing import NamedTuple

import isal
from isal import igzip_lib, isal_zlib
from lz4 import block

from records.codecs import XERIAL_BLOCK_BYTES

ISAL_MAJOR = 2
"""Major version of ISA-L whose structures the kernel knows: their first fields are the same from
2.24 on.
"""

ISAL_LEAST_BYTES = 64 * 1024
"""Both structures are larger: an object that takes less does not contain one."""

SNAPPY_EXTENSION = "_pulsar"
"""The extension module of pulsar-client. It contains the client library, which contains and exports
Google's snappy, with C++ names. No package of snappy for Python exports it. The module is not
imported.
"""

_SNAPPY_LENGTH = "_ZN6snappy21GetUncompressedLengthEPKcmPm"
_SNAPPY_UNPACK = "_ZN6snappy13RawUncompressEPKcmPc"
_SNAPPY_PACK = "_ZN6snappy8internal16CompressFragmentEPKcmPcPti"
"""What `RawCompress` calls with working memory that it allocates. If that fails, it throws a C++
exception, which would end the process.
"""
_SNAPPY_MOST = "_ZN6snappy19MaxCompressedLengthEm"


class Lz4Functions(NamedTuple):
    """Addresses of LZ4_decompress_safe and LZ4_compress_fast_extState; LZ4_sizeofState in bytes."""

    unpack: int
    pack: int
    state_bytes: int


class GzipFunctions(NamedTuple):
    """Addresses of ISA-L's isal_inflate_init, isal_inflate_stateless, isal_deflate_stateless_init
    and isal_deflate_stateless. The sizes, in bytes, are at least those of `struct inflate_state`
    and `struct isal_zstream`.
    """

    unpack_init: int
    unpack: int
    unpack_bytes: int
    pack_init: int
    pack: int
    pack_bytes: int


class SnappyFunctions(NamedTuple):
    """Addresses of GetUncompressedLength, RawUncompress and CompressFragment; maximum bytes of a
    compressed block of XERIAL_BLOCK_BYTES.
    """

    length: int
    unpack: int
    pack: int
    block_bytes: int


def find_lz4_functions() -> Lz4Functions | None:
    """Find the functions of liblz4 in the lz4 package, or in the system's library that it uses.

    Their names are in lz4.h, unchanged since 2015. Returns None if they are hidden (as on Windows).
    """
    try:
        library = ctypes.CDLL(block._block.__file__)
        unpack, pack = _addresses(library, "LZ4_decompress_safe", "LZ4_compress_fast_extState")
        state_bytes = int(library.LZ4_sizeofState())
    except (OSError, AttributeError, TypeError):
        return None
    return Lz4Functions(unpack, pack, state_bytes) if unpack and pack and state_bytes > 0 else None


def find_gzip_functions() -> GzipFunctions | None:
    """Find the functions of ISA-L in the isal package.

    Returns None if they are hidden, or if ISA-L has another major version. The sizes are those of
    the package's objects, which contain the structures.
    """
    if isal.ISAL_MAJOR_VERSION != ISAL_MAJOR:
        return None
    try:
        library = ctypes.CDLL(igzip_lib.__file__)
        unpack_init, unpack, pack_init, pack = _addresses(
            library,
            "isal_inflate_init",
            "isal_inflate_stateless",
            "isal_deflate_stateless_init",
            "isal_deflate_stateless",
        )
        unpack_bytes = igzip_lib.IgzipDecompressor.__basicsize__
        pack_bytes = type(isal_zlib.compressobj()).__basicsize__
    except (OSError, AttributeError, TypeError):
        return None
    if not (unpack_init and unpack and pack_init and pack):
        return None
    if min(unpack_bytes, pack_bytes) < ISAL_LEAST_BYTES:
        return None
    return GzipFunctions(unpack_init, unpack, unpack_bytes, pack_init, pack, pack_bytes)


def find_snappy_functions() -> SnappyFunctions | None:
    """Load pulsar-client's library, which takes 10 ms and 7 MiB the first time, and find the
    functions of snappy.

    Returns None if pulsar-client is not installed or does not export them.
    """
    try:
        spec = find_spec(SNAPPY_EXTENSION)
        if spec is None or spec.origin is None:
            return None
        library = _load(spec.origin)
        length, unpack, pack = _addresses(library, _SNAPPY_LENGTH, _SNAPPY_UNPACK, _SNAPPY_PACK)
        most = library[_SNAPPY_MOST]
    except (ImportError, OSError, AttributeError, TypeError, ValueError):
        return None
    most.argtypes, most.restype = (ctypes.c_size_t,), ctypes.c_size_t
    block_bytes = int(most(XERIAL_BLOCK_BYTES))
    if not (length and unpack and pack and block_bytes > XERIAL_BLOCK_BYTES):
        return None
    return SnappyFunctions(length, unpack, pack, block_bytes)


def _addresses(library: ctypes.CDLL, *names: str) -> list[int]:
    """Return the addresses of functions. Raises AttributeError if there is no such function."""
    return [ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in names]


def _load(path: str) -> ctypes.CDLL:
    """As `CDLL(path)`, which keeps the GIL while it reads the file."""
    open_library = ctypes.CDLL(None).dlopen
    open_library.argtypes, open_library.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    handle = open_library(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
    if not handle:
        raise OSError(f"{path} cannot be loaded")
    return ctypes.CDLL(path, handle=handle)
