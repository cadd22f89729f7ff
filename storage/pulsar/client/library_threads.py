"""Python thread states of the client library's own threads.

The binding creates a thread state for each callback and deletes it afterwards, including 16 KiB of
stack memory mapped by the kernel: for each acknowledgement. That is a fifth of the thread's CPU
time, and each unmapping briefly stops the other threads.
"""

from __future__ import annotations

import ctypes
import threading


class _Here(threading.local):
    """Per thread, for the lifetime of its thread state."""

    is_state_kept = False


_here = _Here()


def keep_thread_state() -> None:
    """Keep the current library thread's Python state until the process ends. Call it first in a
    callback.

    One state is kept per opened client. This is one `PyGILState_Ensure` without
    `PyGILState_Release`, which the C API allows: the binding (pybind11's gil_scoped_acquire) then
    finds a state in use and does not delete it.
    """
    if not _here.is_state_kept:
        _here.is_state_kept = True
        ctypes.pythonapi.PyGILState_Ensure()
