"""The compiled functions for what producers and consumers nearly always send, if they are compiled.

Each function may return None, and always does if it is not compiled. The caller then runs the
Python implementation, which handles all cases and all errors. `total` always returns its result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from storage.log import Buffer

KERNEL = "python"
"""The implementation in use: "cython" or "python"."""

_INTERFACE = 7
"""The version of the functions' signatures. It must equal INTERFACE of the compiled module (1 if
it has none), and changes with any of them."""


def _unavailable(*_: object, **__: object) -> None:
    return


def _total(buffers: Iterable[Buffer]) -> int:
    return sum(map(len, buffers))


batch: Callable[..., Any] = _unavailable
fetch_reply: Callable[..., Any] = _unavailable
fetch_request: Callable[..., Any] = _unavailable
frames: Callable[..., Any] = _unavailable
header: Callable[..., Any] = _unavailable
in_flight_append: Callable[..., Any] = _unavailable
plain_context: Callable[..., Any] = _unavailable
plain_produce: Callable[..., Any] = _unavailable
plain_work: Callable[..., Any] = _unavailable
reply: Callable[..., Any] = _unavailable
request: Callable[..., Any] = _unavailable
stamp: Callable[..., Any] = _unavailable

states: Any = None
"""The compiled module with the classes of `gateway.protocol.plain_state`, if there is one."""

total: Callable[[Iterable[Buffer]], int] = _total
"""The number of bytes in all buffers, also if it is not compiled. A reply can have thousands."""

if os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import gateway.protocol.wire._plain as _plain
    except ImportError:
        pass
    else:
        if getattr(_plain, "INTERFACE", 1) == _INTERFACE:
            KERNEL, states = "cython", _plain
            plain_context, plain_work = _plain.PlainContext, _plain.PlainWork
            batch, fetch_reply, fetch_request, frames = (
                _plain.batch,
                _plain.fetch_reply,
                _plain.fetch_request,
                _plain.frames,
            )
            header, in_flight_append, plain_produce, reply, request, stamp, total = (
                _plain.header,
                _plain.in_flight_append,
                _plain.plain_produce,
                _plain.reply,
                _plain.request,
                _plain.stamp,
                _plain.total,
            )
