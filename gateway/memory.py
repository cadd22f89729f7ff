"""Telling the allocator what this process does: it takes and gives back blocks of a megabyte thousands of times a second.

By default glibc returns such blocks to the kernel at once and asks for them again, and every page of them is then cleared anew; keeping
some of them costs a bounded amount of memory and saves a third of the CPU of large fetches. Elsewhere (musl, macOS) nothing is changed.
See mallopt(3).

Free memory below a block that is in use stays in the heap all the same. It is returned when a load has ended (`HeapTrimmer`): decision 029.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable

#: mallopt's parameters, from malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8

#: Free memory at the end of the heap that is kept: some fetch replies of the usual size. What is above goes back to the kernel.
KEPT_FREE_BYTES = 64 << 20

#: The heap grows by this at a time.
HEAP_STEP_BYTES = 4 << 20

#: Blocks from this size on come straight from the kernel and return to it: the greatest value that glibc takes.
LARGE_BLOCK_BYTES = 32 << 20

#: Heaps for all threads: what one thread converts another one sends, so heaps of their own would only keep more memory.
MAX_ARENAS = 2

#: How often it is looked whether free memory can go back to the kernel, in seconds.
TRIM_INTERVAL_SECONDS = 5.0

#: A process is quiet that uses less than this share of one CPU. To trim a heap with 1 GiB to return holds up others that allocate for
#: some 0.1 s, and a busy process would use that memory again at once.
QUIET_CPU_SHARE = 0.25


def configure_allocator() -> bool:
    """Set the allocator up. False where it is not glibc's, or would not be set."""
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
    """The call releases the interpreter's lock."""
    threading.Thread(target=trim, name="trim", daemon=True).start()


class HeapTrimmer:
    """Calls `trim` at the end of each interval of TRIM_INTERVAL_SECONDS in which the process was quiet. `cpu_seconds` is what it has used so far."""

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
    """What was made at the start stays: the collector need not walk it again, which would stop everything for tens of milliseconds."""
    gc.collect()
    gc.freeze()
