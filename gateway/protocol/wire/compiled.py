"""The compiled road for what producers nearly always send, where it was compiled. Every function may answer None, and without a compiled one always
does: then the Python beside it, which knows all cases and all errors, has the word."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

KERNEL = "python"
"""What stands behind the functions: "cython" or "python"."""

_INTERFACE = 1
"""What this file expects of the compiled one, whose INTERFACE it is (1 where it says none); it changes with any function that the two share."""


def _unavailable(*_: object) -> None:
    return


batch: Callable[..., Any] = _unavailable
header: Callable[..., Any] = _unavailable
reply: Callable[..., Any] = _unavailable
request: Callable[..., Any] = _unavailable

if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import gateway.protocol.wire._plain as _plain
    except ImportError:
        pass
    else:
        if getattr(_plain, "INTERFACE", 1) == _INTERFACE:
            KERNEL = "cython"
            batch, header, reply, request = (
                _plain.batch,
                _plain.header,
                _plain.reply,
                _plain.request,
            )
