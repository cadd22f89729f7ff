"""Selects the implementation of the inner loops: `_kernel` (Cython) or `_pure`. They differ only in
speed.
"""

from __future__ import annotations

import os

from records import _pure
from records.codec_libraries import (
    find_gzip_functions,
    find_lz4_functions,
    find_snappy_functions,
)
from records.layout import Codec

KERNEL = "python"
"""The selected implementation: "cython" or "python"."""

KERNEL_REASON = ""
"""Why the compiled kernel is not used; empty if it is. Logged once by the server."""

PACKED_CODECS = 0
"""Bit N is set if the kernel converts batches compressed in codec N."""

_INTERFACE = 9
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
            gzip = find_gzip_functions()
            if gzip is not None:
                _kernel.use_gzip(*gzip)
                PACKED_CODECS |= 1 << Codec.GZIP
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
