"""Where the functions of liblz4 are in this process, for the kernel, which calls them without the interpreter.

The `lz4` package brings the library within its extension modules or is linked to the system's; either way its functions are found by the names that lz4.h
has kept since 2015. Where they are not (they may be hidden, as on Windows), everything works as before, through the package itself.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from lz4 import block


class Lz4Functions(NamedTuple):
    """Of LZ4_decompress_safe and LZ4_compress_fast_extState, and what LZ4_sizeofState says, in bytes."""

    unpack: int
    pack: int
    state_bytes: int


def find_functions() -> Lz4Functions | None:
    """None where the functions are hidden."""
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
