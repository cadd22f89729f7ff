"""Selects the implementation of the inner loops: `_kernel` (Cython) or `_pure`. They differ only in
speed.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from lz4 import block

from records import _pure
from records.layout import Codec
from records.snappy_library import find_snappy_functions

KERNEL = "python"
"""The selected implementation: "cython" or "python"."""

KERNEL_REASON = ""
"""Why the compiled kernel is not used; empty if it is. Logged once by the server."""

PACKED_CODECS = 0
"""Bit N is set if the kernel converts batches compressed in codec N."""

_INTERFACE = 7
"""Expected INTERFACE of the kernel; incremented when a shared function changes."""

tally = _pure.tally
conversions = _pure.conversions
scan = _pure.scan
plain_run = _pure.plain_run
cut = _pure.cut
stamp = _pure.stamp
down_batch = _pure.down_batch
down_messages = _pure.down_messages
down_all = _pure.down_all
down_run = _pure.down_run
up_messages = _pure.up_messages


class Lz4Functions(NamedTuple):
    """Addresses of LZ4_decompress_safe and LZ4_compress_fast_extState; LZ4_sizeofState in bytes."""

    unpack: int
    pack: int
    state_bytes: int


def find_lz4_functions() -> Lz4Functions | None:
    """Find the functions of liblz4, which the kernel calls without the GIL.

    The `lz4` package contains the library in its extension modules or links to the system's; in
    both cases the functions are found by their names in lz4.h, unchanged since 2015. Returns None
    if the symbols are hidden (as on Windows); then the package's own functions are used.
    """
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


if os.environ.get("KOPGATE_PURE_PYTHON", "") not in ("", "0"):
    KERNEL_REASON = "KOPGATE_PURE_PYTHON is set"
else:
    try:
        import records._kernel as _kernel
    except ImportError as error:
        KERNEL_REASON = f"the compiled kernel is missing (no C compiler at installation?): {error}"
    else:
        if getattr(_kernel, "INTERFACE", 1) != _INTERFACE:
            KERNEL_REASON = (
                "the compiled kernel is from another version: reinstall (in a checkout: make clean)"
            )
        else:
            KERNEL = "cython"
            lz4 = find_lz4_functions()
            if lz4 is not None:
                _kernel.use_lz4(*lz4)
                PACKED_CODECS |= 1 << Codec.LZ4
            tally = _kernel.tally
            conversions = _kernel.conversions
            scan = _kernel.scan
            plain_run = _kernel.plain_run
            cut = _kernel.cut
            stamp = _kernel.stamp
            down_batch = _kernel.down_batch
            down_messages = _kernel.down_messages
            down_all = _kernel.down_all
            down_run = _kernel.down_run
            up_messages = _kernel.up_messages

_has_searched_snappy = False


def use_snappy() -> None:
    """Let the kernel convert snappy from now on, if a library with its functions is found.

    The library is large, so it is not loaded at import but with the first batch in snappy that is
    converted, in the thread that converts it. That batch is still converted by `codecs.py`.
    """
    global PACKED_CODECS, _has_searched_snappy
    if _has_searched_snappy or KERNEL != "cython":
        return
    _has_searched_snappy = True
    functions = find_snappy_functions()
    if functions is not None:
        _kernel.use_snappy(*functions)
        PACKED_CODECS |= 1 << Codec.SNAPPY
