"""Addresses of liblz4's functions, which the kernel calls without the GIL.

The `lz4` package contains the library in its extension modules or links to the system's; in both
cases the functions are found by their names in lz4.h, unchanged since 2015. If the symbols are
hidden (as on Windows), the package's own functions are used.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from lz4 import block


class Lz4Functions(NamedTuple):
    """Addresses of LZ4_decompress_safe and LZ4_compress_fast_extState; LZ4_sizeofState in bytes."""

    unpack: int
    pack: int
    state_bytes: int


def find_functions() -> Lz4Functions | None:
    """Return None if the symbols are hidden."""
    try:
        library = ctypes.CDLL(block._block.__file__)
        unpack, pack = (
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (library.LZ4_decompress_safe, library.LZ4_compress_fast_extState)
        )
        state_bytes = int(library.LZ4_sizeofState())
    except (OSError, AttributeError, TypeError):
        return None
    return Lz4Functions(unpack, pack, state_bytes) if unpack and pack and state_bytes > 0 else None
