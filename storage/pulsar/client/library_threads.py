"""The client library's own threads, as the interpreter sees them.

What such a thread calls back runs with a thread state that the binding makes for it and takes down again, with 16 KiB of stack straight from the
kernel: at each acknowledgement. That is a fifth of what the thread costs, and every unmapping stops the other threads for a moment.
"""

from __future__ import annotations

import ctypes
import threading


class _Here(threading.local):
    """Of one thread, for as long as its state lasts."""

    is_state_kept = False


_here = _Here()


def keep_thread_state() -> None:
    """To be called first in a callback: the state of this thread of the library's stays until the process ends. One for each client that is opened.

    It is one `PyGILState_Ensure` without its `PyGILState_Release`, which the C API allows: the binding (pybind11's gil_scoped_acquire) then finds a
    state that somebody uses, and leaves it there.
    """
    if not _here.is_state_kept:
        _here.is_state_kept = True
        ctypes.pythonapi.PyGILState_Ensure()
