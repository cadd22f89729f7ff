"""Allocator settings.

The gateway allocates and frees blocks of about 1 MiB thousands of times a second. By default glibc
returns such blocks to the kernel at once and requests them again, and each of their pages is zeroed
again. Keeping some of them costs a bounded amount of memory and saves a third of the CPU time of
large fetches. Other allocators (musl, macOS) are left unchanged. See mallopt(3).

Free memory below a used block stays in the heap. `HeapTrimmer` returns it when the load ends
(decision 029).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable

#: Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8

#: Free memory kept at the end of the heap: several fetch replies of the usual size. Memory above it
#: is returned to the kernel.
KEPT_FREE_BYTES = 64 << 20

#: Growth of the heap per request to the kernel.
HEAP_STEP_BYTES = 4 << 20

#: Blocks of at least this size come from and return to the kernel directly. The largest value that
#: glibc accepts.
LARGE_BLOCK_BYTES = 32 << 20

#: Heaps of all threads together. A reply converted by one thread is sent by another, so more heaps
#: would only hold more free memory.
MAX_ARENAS = 2

#: Seconds between checks whether free memory can be returned.
TRIM_INTERVAL_SECONDS = 5.0

#: A process that uses less than this share of one CPU is idle. Trimming a heap with 1 GiB to return
#: blocks other allocations for about 0.1 s, and a busy process would use that memory again at once.
QUIET_CPU_SHARE = 0.25


def configure_allocator() -> bool:
    """Configure glibc's allocator.

    Returns False if the allocator is another one or rejects a value.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    wanted = {
        _M_TRIM_THRESHOLD: KEPT_FREE_BYTES,
        _M_TOP_PAD: HEAP_STEP_BYTES,
        _M_MMAP_THRESHOLD: LARGE_BLOCK_BYTES,
        _M_ARENA_MAX: MAX_ARENAS,
    }
    taken = [mallopt(parameter, value) == 1 for parameter, value in wanted.items()]
    return all(taken)


def trim() -> None:
    """Return all free pages of all heaps to the kernel. See malloc_trim(3)."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def trim_in_background() -> None:
    """Call `trim` in a thread. malloc_trim runs without the GIL."""
    threading.Thread(target=trim, name="trim", daemon=True).start()


class HeapTrimmer:
    """Calls `trim` at the end of each interval in which the process was idle.

    Intervals are TRIM_INTERVAL_SECONDS long. `cpu_seconds` returns the CPU time used so far.
    """

    __slots__ = ("_cpu_seconds", "_trim", "_used")

    def __init__(
        self,
        trim: Callable[[], None] = trim_in_background,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self._trim = trim
        self._cpu_seconds = cpu_seconds
        self._used = cpu_seconds()

    def end_interval(self) -> None:
        before, self._used = self._used, self._cpu_seconds()
        if self._used - before < QUIET_CPU_SHARE * TRIM_INTERVAL_SECONDS:
            self._trim()


def freeze_startup_objects() -> None:
    """Exempt the objects created at start from garbage collection.

    Each full collection would otherwise scan them, which blocks the process for tens of
    milliseconds.
    """
    gc.collect()
    gc.freeze()
