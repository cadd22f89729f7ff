"""Selects the implementation of the inner loops: `_kernel` (Cython) or `_pure`. They differ only in
speed.
"""

from __future__ import annotations

import os

from records import _pure, lz4_library

KERNEL = "python"
"""The selected implementation: "cython" or "python"."""

KERNEL_REASON = ""
"""Why the compiled kernel is not used; empty if it is. Logged once by the server."""

_INTERFACE = 2
"""Expected INTERFACE of the kernel; incremented when a shared function changes."""

scan = _pure.scan
plain_run = _pure.plain_run
cut = _pure.cut
stamp = _pure.stamp
down_batch = _pure.down_batch
down_messages = _pure.down_messages
down_all = _pure.down_all
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
            lz4 = lz4_library.find_functions()
            if lz4 is not None:
                _kernel.use_lz4(*lz4)
            scan = _kernel.scan
            plain_run = _kernel.plain_run
            cut = _kernel.cut
            stamp = _kernel.stamp
            down_batch = _kernel.down_batch
            down_messages = _kernel.down_messages
            down_all = _kernel.down_all
            up_messages = _kernel.up_messages
